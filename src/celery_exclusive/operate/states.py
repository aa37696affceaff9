"""The states of keys: which tasks hold each, on which workers, and which tasks wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.claim import task_id, worker_number
from celery_exclusive.core.operations import Owner
from celery_exclusive.core.records import SECOND
from celery_exclusive.operate.calls import UNKNOWN, StoredCall, read_call
from celery_exclusive.operate.finding import holder_of_id
from celery_exclusive.operate.parts import SHOWN, PartState, has_parts, part_named, parts_of
from celery_exclusive.operate.room import Room
from celery_exclusive.options.key_text import own_key, without_hash
from celery_exclusive.options.templates import strings_of
from celery_exclusive.stores import base
from celery_exclusive.stores.base import KEYS_AT_ONCE, Cursor, Place, Snapshot, pages, whole_line
from celery_exclusive.stores.workers import WorkerRecord
from celery_exclusive.task import LockHolder, WaitingTask

if TYPE_CHECKING:
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a key, as an operator sees it. Times are seconds.

    * `task`: the task of the key. None: tasks share it, or this app does not know the task.
    * `args`: the arguments that make the key, as logs show them, of a message that the store has. None: it
      has none, or they may not be shown. "": one key for all calls of the task.
    * `state`: "running", "queued", "period", "waiting", "aside", "set", "damaged" or "free".
    * `holders`: at most ten, the others are counted in `other_holders`.
    * `waiting`: the number of tasks that wait in line, or for room of their parts (`shut`). `aside`: of tasks
      out of the line. `line`: the first ten of it, of which the first and the last have their `callers`.
    * `queue`: the routing key of that message.
    * `max_waiting`: how many tasks may wait in line, if the key or a message of it names its task.
    * `problem`: the damage of its data. All else is empty then.
    * `room`: its limits, rates, pause and hold.
    * `parts`: the ten with the most waiting tasks, behind the ones that an operator has set. The others are
      counted in `other_parts`. In a list of keys, only a key whose tasks wait for each other has any.
    """

    key: str
    task: str | None = None
    args: str | None = None
    state: str = "free"
    holders: tuple[LockHolder, ...] = ()
    other_holders: int = 0
    waiting: int = 0
    aside: int = 0
    line: tuple[WaitingTask, ...] = ()
    queue: str = ""
    problem: str = ""
    max_waiting: int | None = None
    room: Room = field(default_factory=Room)
    shut: int = 0
    parts: tuple[PartState, ...] = ()
    other_parts: int = 0

    @property
    def in_line(self) -> int:
        """The number of tasks in line."""
        return self.waiting - self.shut

    @property
    def shown_state(self) -> str:
        """The state as people see it: "dead" if the leases of all its runs have expired."""
        is_dead = bool(self.holders) and not self.other_holders and all(it.is_dead for it in self.holders)
        return "dead" if is_dead else self.state

    @property
    def is_full(self) -> bool:
        """Whether its line takes no further call."""
        return self.max_waiting is not None and self.waiting >= self.max_waiting

    @property
    def held(self) -> float | None:
        """The seconds since the first of the holders began; None without a holder."""
        return max((holder.age for holder in self.holders), default=None)

    @property
    def oldest_wait(self) -> float | None:
        """The longest wait of the first ten in line; None if no task is in line."""
        return max((task.age for task in self.line), default=None)

    @property
    def all_waiting(self) -> int:
        """The number of waiting tasks, those aside included."""
        return self.waiting + self.aside


def key_states(
    services: Services, keys: Collection[str], *, asks_for_parts: bool = False
) -> Iterator[KeyState]:
    """Yield the states of these keys, in order, also of those that are free by now.

    A hundred keys take two requests, and are all that is in memory. A key whose tasks are all aside takes one
    more, and so does one with parts, or each if it `asks_for_parts`.
    """
    view, ordered = _View(services), sorted(keys)
    for first in range(0, len(ordered), KEYS_AT_ONCE):
        seen = list(base.states(services.store, ordered[first : first + KEYS_AT_ONCE]))
        asked = [(key, id) for key, snapshot in seen for id in _some_ids(snapshot)]
        kept = services.store.messages_of(asked) if asked else []
        calls = defaultdict[str, dict[str, StoredCall]](dict)
        for (key, id), message in zip(asked, kept, strict=True):
            calls[key][task_id(id)] = read_call(services, key, id, message)
        for key, snapshot in seen:
            known = [call for call in calls[key].values() if call is not UNKNOWN]
            if not known and snapshot.aside:  # a snapshot names no task aside
                places = services.store.line(key, None, 1).places
                known = [read_call(services, key, place.waiting.id, place.message) for place in places]
            state = view.state(key, snapshot, known[0] if known else UNKNOWN)
            of = calls[key]
            line = [replace(it, callers=of.get(it.task_id, UNKNOWN).callers) for it in state.line]
            holders = [replace(it, deaths=of.get(it.task_id, UNKNOWN).deaths) for it in state.holders]
            state = replace(state, line=tuple(line), holders=tuple(holders))
            if not snapshot.problem and (asks_for_parts or has_parts(snapshot)):
                state = _with_parts(state, parts_of(services.store, key, snapshot.now))
            yield state


def _with_parts(state: KeyState, parts: list[PartState]) -> KeyState:
    is_set = state.state == "free" and any(part.is_set for part in parts)
    shown = tuple(parts[:SHOWN])
    return replace(
        state, state="set" if is_set else state.state, parts=shown, other_parts=len(parts) - len(shown)
    )


def key_state(services: Services, key: str) -> KeyState:
    return next(key_states(services, [key], asks_for_parts=True))


def part_state(services: Services, state: KeyState, name: str) -> PartState:
    """Return a part of a key, also one that the state does not name."""
    if state.other_parts and name not in [part.name for part in state.parts]:
        store = services.store
        return part_named(parts_of(store, state.key, store.times().now), name)
    return part_named(state.parts, name)


def holder_of(services: Services, state: KeyState, id: str) -> LockHolder | None:
    """Return the holder that is this task, with its `deaths`, also one that the state does not name."""
    named = next((holder for holder in state.holders if holder.task_id == id), None)
    if len(state.holders) < 2 or named is state.holders[0]:
        return named
    if (owner := holder_of_id(services.store, state.key, id)) is None:
        return named
    (message,) = services.store.messages_of([(state.key, owner.id)])
    deaths = read_call(services, state.key, owner.id, message).deaths
    return replace(_View(services).holder(state.key, owner), deaths=deaths)


def whole_line_of(services: Services, key: str) -> Iterator[WaitingTask]:
    """Yield all tasks that wait for a key, in line and then aside. One page of the line is in memory."""
    for number, place in enumerate(whole_line(services.store, key), 1):
        yield waiting_task(services, key, place, number)


def line_page(
    services: Services, key: str, after: Cursor | None = None, first: int = 1, count: int = 50
) -> tuple[list[WaitingTask], Cursor | None]:
    """Return a page of a key's line, and the cursor after which it continues. `first`: its first place."""
    page = services.store.line(key, after, count)
    tasks = (waiting_task(services, key, place, number) for number, place in enumerate(page.places, first))
    return list(tasks), page.next


def page_of(services: Services, key: str, id: str) -> tuple[Cursor | None, int]:
    """Return what `line_page` takes for a page that begins with this task, or else with the first in line."""
    store, after, first = services.store, None, 1
    for page in pages(store, key):
        ids = [task_id(place.waiting.id) for place in page.places]
        if id in ids:
            if before := ids.index(id):
                after = store.line(key, after, before).next
            return (after, first + before) if after else (None, 1)
        after, first = page.next, first + len(ids)
    return None, 1


def waiting_task(services: Services, key: str, place: Place, number: int) -> WaitingTask:
    call = read_call(services, key, place.waiting.id, place.message)
    task = WaitingTask.of(place.waiting, number)
    return replace(task, task=call.task, args=call.args, callers=call.callers)


def is_key_of(task: str, key: str) -> bool:
    return without_hash(key) == own_key(task, key[:1])


def keys_of(services: Services, task: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of this task, or that the template of its `key=` can make: others may share these."""
    known = services.app.tasks.get(task)
    options = (services.exclusive(known), services.unique(known))
    shared = {it.kind: strings_of(it.key) for it in options if it and isinstance(it.key, str)}

    def is_shared(key: str) -> bool:
        return key[:1] in shared and key[1:2] == "=" and bool(shared[key[:1]].fullmatch(key[2:]))

    return [key for key in keys if is_key_of(task, key) or is_shared(key)]


def tasks_with_options(services: Services) -> list[Any]:
    tasks = services.app.tasks.values()
    return [task for task in tasks if services.exclusive(task) or services.unique(task)]


def tasks_by_key(services: Services) -> dict[str, str]:
    """Return the name of each task of the app by the key of the whole task."""
    return {own_key(name): name for name in services.app.tasks}


def task_of(key: str, tasks: Mapping[str, str]) -> str | None:
    """Return the task that a key belongs to, of `tasks_by_key`. None: tasks share it, or it is unknown."""
    return tasks.get("x" + without_hash(key[1:]))


class _View:
    """The facts that all keys share: the tasks of the app by their keys, and the workers by their numbers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._names = tasks_by_key(services)
        self._workers: Mapping[int, Sequence[WorkerRecord]] | None = None

    def state(self, key: str, snapshot: Snapshot, call: StoredCall) -> KeyState:
        task = task_of(key, self._names)
        return KeyState(
            key,
            task,
            call.args_of_key,
            snapshot.state,
            tuple(self.holder(key, owner) for owner in snapshot.holders),
            snapshot.others,
            snapshot.waiting,
            snapshot.aside,
            tuple(WaitingTask.of(one, place) for place, one in enumerate(snapshot.line, 1)),
            call.queue,
            snapshot.problem,
            self._max_waiting(task or call.task, key),
            Room.of(snapshot),
            snapshot.terms.shut,
        )

    def holder(self, key: str, owner: Owner) -> LockHolder:
        ttl = self._ttl(task_of(key, self._names), key)
        since = None if ttl is None or owner.phase != "running" else ttl - owner.remaining
        is_known = since is not None and since >= 0 and owner.remaining > 0
        return replace(
            LockHolder.of(owner),
            workers=self._workers_of(owner),
            renewed=since / SECOND if since is not None and is_known else None,
        )

    def _workers_of(self, owner: Owner) -> tuple[WorkerRecord, ...]:
        number = worker_number(owner.token)
        if not number:
            return ()
        if self._workers is None:
            self._workers = self._services.store.workers()
        return tuple(self._workers.get(number, ()))

    def _ttl(self, name: str | None, key: str) -> int | None:
        """Return the ttl of a task's leases, as this app declares it now."""
        services, task = self._services, self._services.app.tasks.get(name)
        option = services.exclusive(task) if key[:1] == "x" else services.unique(task)
        return services.ttl(option) if option else None

    def _max_waiting(self, name: str | None, key: str) -> int | None:
        """Return how many tasks may wait for a key of this task, as this app declares it now."""
        services, task = self._services, self._services.app.tasks.get(name)
        option = services.exclusive(task) if key[:1] == "x" else None
        return services.max_waiting(option) if option and option.has_line else None


def _some_ids(snapshot: Snapshot) -> list[str]:
    """Return the ids of the first holder, and of the first and the tenth in line.

    The store may have their messages. When it is asked for them, the first in line may have begun.
    """
    some = [holder.id for holder in snapshot.holders[:1]]
    some += [waiting.id for waiting in (*snapshot.line[:1], *snapshot.line[-1:])]
    return list(dict.fromkeys(some))
