"""The list of keys that have a holder or a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.options.key_text import own_key, without_hash
from celery_exclusive.stores.base import Snapshot, states

if TYPE_CHECKING:
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True)
class Lock:
    """A key and its state. `task` is None for an absolute key, and for a task of another app."""

    key: str
    task: str | None
    snapshot: Snapshot

    def record(self) -> dict[str, Any]:
        """Return the object that `--json` prints. Times are seconds."""
        return {
            "key": self.key,
            "task": self.task,
            "state": self.snapshot.state,
            "holders": [
                {
                    "id": task_id(owner.id),
                    "age": round(owner.age / SECOND, 3),
                    "lease_left": round(owner.remaining / SECOND, 3),
                    "fence": owner.fence,
                }
                for owner in self.snapshot.holders
            ],
            "waiting": self.snapshot.all_waiting,
            "aside": self.snapshot.aside,
            **({"problem": self.snapshot.problem} if self.snapshot.problem else {}),
        }


def listing(services: Services, keys: Collection[str]) -> Iterator[Lock]:
    """Yield the states of these keys, in order, without those that are free by now."""
    tasks = {own_key(name): name for name in services.app.tasks}
    for key, snapshot in states(services.store, keys):
        if snapshot.is_busy:
            yield Lock(key, tasks.get("x" + without_hash(key[1:])), snapshot)
