"""The list of keys that have a holder or a line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import NOT_BEGUN, SECOND
from celery_exclusive.options.keys import own_key
from celery_exclusive.stores.base import Snapshot

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_HASH = re.compile(r":[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class Lock:
    """A key and its state. `task` is None for an absolute key, and for a task of another app."""

    key: str
    task: str | None
    snapshot: Snapshot

    @property
    def waiting(self) -> int:
        """The number of waiting tasks, those aside included."""
        return self.snapshot.waiting + self.snapshot.aside

    @property
    def state(self) -> str:
        """`running`, `waiting` (no holder, offered to the first in line) or `aside` (no worker accepts).

        A unique key is `queued` until its task begins, or held for a `period`. A key with damaged data is
        `damaged`.
        """
        if self.snapshot.problem:
            return "damaged"
        if self.snapshot.holders:
            phase = self.snapshot.holders[0].phase
            return "queued" if phase in NOT_BEGUN else phase
        return "waiting" if self.snapshot.waiting else "aside"

    def record(self) -> dict[str, Any]:
        """Return the object that `--json` prints. Times are seconds."""
        return {
            "key": self.key,
            "task": self.task,
            "state": self.state,
            "holders": [
                {
                    "id": task_id(owner.id),
                    "age": round(owner.age / SECOND, 3),
                    "lease_left": round(owner.remaining / SECOND, 3),
                    "fence": owner.fence,
                }
                for owner in self.snapshot.holders
            ],
            "waiting": self.waiting,
            "aside": self.snapshot.aside,
            **({"problem": self.snapshot.problem} if self.snapshot.problem else {}),
        }


def listing(services: Services, keys: Collection[str]) -> Iterator[Lock]:
    """Yield the states of these keys, in order, without those that are free by now."""
    store, tasks = services.store, {own_key(name): name for name in services.app.tasks}
    for batch in batches(sorted(keys)):
        for key, snapshot in zip(batch, store.inspect_all(batch), strict=True):
            if is_busy(snapshot):
                yield Lock(key, tasks.get("x" + _HASH.sub("", key[1:])), snapshot)


def batches(keys: Sequence[str], size: int = 100) -> Iterator[Sequence[str]]:
    return (keys[first : first + size] for first in range(0, len(keys), size))


def is_busy(snapshot: Snapshot) -> bool:
    return bool(snapshot.holders or snapshot.waiting or snapshot.aside or snapshot.problem)
