"""Removes waiting tasks from their lines, and ends each of them as REVOKED."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from celery_exclusive import notices
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Applied, Drop
from celery_exclusive.core.records import NAMED
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.operate.calls import read_call
from celery_exclusive.operate.finding import keys_with_place
from celery_exclusive.operate.patience import ask_backend
from celery_exclusive.operate.revoking import end_as_revoked, has_ended
from celery_exclusive.operate.saved import Fate, Saved, SavedFile
from celery_exclusive.operate.states import is_key_of
from celery_exclusive.stores.base import pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_exclusive.core.operations import Waiting
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Place, Store

T = TypeVar("T")
REASON = "dropped from the line of its lock"


def find(
    store: Store, keys: Iterable[str], is_wanted: Callable[[str, Place], bool]
) -> Iterator[tuple[str, Sequence[Place]]]:
    """Yield the waiting tasks of these keys that are wanted, page by page, each page with its key."""
    for key in keys:
        for page in pages(store, key):
            if wanted := [place for place in page.places if is_wanted(key, place)]:
                yield key, wanted


@dataclass
class Found:
    """The waiting tasks that an operator has chosen. Tasks that come later are not among them.

    `problems`: the keys whose lines cannot be read.
    """

    store: Store
    ids: dict[str, set[str]] = field(default_factory=dict)
    first: list[tuple[str, Waiting]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def search(
        cls,
        services: Services,
        keys: Iterable[str],
        *,
        task: str = "",
        older_than: int = 0,
        ids: Collection[str] | None = None,
    ) -> Found:
        """Search the lines of these keys. `older_than`: microseconds of waiting."""
        found = cls(services.store)

        def is_wanted(key: str, place: Place) -> bool:
            waiting = place.waiting
            return (
                waiting.age >= older_than
                and (ids is None or task_id(waiting.id) in ids)
                and (not task or _is_of(services, task, key, place))
            )

        for key in keys:
            try:
                for _, places in find(services.store, [key], is_wanted):
                    found.ids.setdefault(key, set()).update(place.waiting.id for place in places)
                    missing = max(NAMED - len(found.first), 0)
                    found.first += [(key, place.waiting) for place in places[:missing]]
            except UnreadableKey as error:
                found.problems.append(str(error))
        return found

    @property
    def count(self) -> int:
        return sum(map(len, self.ids.values()))

    def places(self) -> Iterator[tuple[str, Sequence[Place]]]:
        """Yield the tasks that wait still, page by page, with their messages."""
        return find(self.store, self.ids, lambda key, place: place.waiting.id in self.ids[key])


class Dropper:
    """Drops waiting tasks, after it has saved their messages.

    A task is saved, then removed from its line in one step of the store, and then ended, if that step has
    removed it. So a process that dies in between leaves its message in the file, and maybe in line, too, and
    `finish` with the same file completes what it has begun: the store knows which tasks it has removed.

    `file` None: the messages are discarded. `is_patient`: the result backend may take its time.
    """

    def __init__(
        self,
        services: Services,
        file: SavedFile | None = None,
        reason: str = "",
        *,
        is_patient: bool = False,
    ) -> None:
        self.services, self.file, self.reason = services, file, reason
        self._is_patient = is_patient
        self._token = file.token if file else os.urandom(8).hex()
        self.ended: set[str] = set()
        """The claim ids of the tasks that were dropped."""
        self.dropped = self.left = 0
        """How many tasks were dropped, and how many had left the line by themselves."""
        self.problems: list[str] = []
        self._first: dict[str, str] = {}
        """The first task that was dropped of each key."""

    def finish(self) -> int:
        """End the tasks that an earlier command has saved and not ended. Return their number."""
        if not self.file or "saved" not in self.file.fates.values():
            return 0
        unfinished = {
            saved.id: saved
            for saved in self.file.tasks()
            if isinstance(saved, Saved) and self.file.fates[saved.id] == "saved"
        }
        for saved in unfinished.values():
            self._remove(saved, may_have_ended=True)
        return len(unfinished)

    def drop(self, key: str, places: Sequence[Place]) -> None:
        """Drop these tasks. A result backend that is silent at first raises before one leaves its line."""
        tasks = [Saved(key, place.waiting.id, place.message) for place in places]
        self._has_ended(tasks[0])  # asks the result backend
        if self.file:
            self.file.save(tasks)
        for saved in tasks:
            self._remove(saved)

    def record(self, by: str) -> None:
        """Log what this operator has dropped, if anything, and tell monitors."""
        if self._first:
            file = str(self.file.path) if self.file else ""
            notices.dropped_by_operator(self.services, self.dropped, self._first, by, self.reason, file)

    def _remove(self, saved: Saved, *, may_have_ended: bool = False) -> None:
        reply = self.services.store.apply(saved.key, Drop(saved.id, self._token))
        # A task that waits for its last chance has its place at its lock, too.
        is_ended = saved.id in self.ended
        if reply.answer != Applied(True) and not is_ended:
            self.left += 1
            self._note("left", saved)
            return
        if not is_ended:
            self.ended.add(saved.id)
            self.dropped += 1
            self._first.setdefault(saved.key, task_id(saved.id))
            if not (may_have_ended and self._has_ended(saved)):
                reason = self.reason or REASON
                problem = self._ask(lambda: end_as_revoked(self.services, saved, reason))
                self.problems += [problem] * bool(problem)
        self._note("ended", saved)

    def _has_ended(self, saved: Saved) -> bool:
        return self._ask(lambda: has_ended(self.services, task_id(saved.id)))

    def _ask(self, call: Callable[[], T]) -> T:
        return call() if self._is_patient else ask_backend(self.services, call)

    def _note(self, fate: Fate, saved: Saved) -> None:
        if self.file:
            self.file.note(fate, saved.id)


def _is_of(services: Services, task: str, key: str, place: Place) -> bool:
    """Whether a waiting task has this name: by its key, or in the line of a key that tasks share."""
    is_shared = key[1:2] == "="
    named = read_call(services, key, place.waiting.id, place.message).task if is_shared else None
    return named == task if is_shared else is_key_of(task, key)


def cancel(services: Services, id: str, reason: str) -> bool:
    """Drop the task with this id wherever it waits, without a file. Return whether it waited."""
    dropper = Dropper(services, reason=reason, is_patient=True)
    store = services.store
    for key, places in find(
        store, {*keys_with_place(store, id)}, lambda _, place: task_id(place.waiting.id) == id
    ):
        dropper.drop(key, places)
    return dropper.dropped > 0
