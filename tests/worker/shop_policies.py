"""One task for each answer to a conflict."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Debounce, Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]
ARRIVED = Exclusive("key", order="arrived")
"""So that a worker logs each call that waits, whatever the broker and the store are."""
POLICIES: dict[str, dict[str, Any]] = {
    'Exclusive(on_conflict="wait")': {"exclusive": ARRIVED},
    "Exclusive(give_up_after=3)": {"exclusive": ARRIVED.replace(give_up_after=3)},
    'Exclusive(give_up_after=3, on_give_up="skip")': {
        "exclusive": ARRIVED.replace(give_up_after=3, on_give_up="skip")
    },
    'Exclusive(on_conflict="latest")': {"exclusive": ARRIVED.replace(on_conflict="latest")},
    'Exclusive(on_conflict="supersede")': {"exclusive": Exclusive("key", on_conflict="supersede")},
    'Exclusive(on_conflict="skip")': {"exclusive": Exclusive("key", on_conflict="skip")},
    'Exclusive(on_conflict="raise")': {"exclusive": Exclusive("key", on_conflict="raise")},
    'Exclusive(on_conflict="reschedule")': {"exclusive": Exclusive("key", on_conflict="reschedule")},
    'Unique(on_conflict="skip")': {"unique": Unique("key")},
    'Unique(on_conflict="share")': {"unique": Unique("key", on_conflict="share")},
    'Unique(on_conflict="raise")': {"unique": Unique("key", on_conflict="raise")},
    "Debounce(wait=5, max_wait=5)": {"unique": Debounce("key", wait=5, max_wait=5)},
}


def work(self: Task, key: str, hold: bool = False) -> str:
    act(self, key, "holder" if hold else "other", hold=hold)
    return "the result of <id>" if hold else "its own"


for name, options in POLICIES.items():
    task(name=name, **options)(work)


@task(name="next")
def following(self: Task, given: Any) -> Any:
    return given
