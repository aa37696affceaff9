"""Tasks of each policy, and a receiver that writes each outcome down, with the current task."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from celery import Task, current_task

from celery_exclusive import Exclusive, Unique
from celery_exclusive.signals import LockOutcome, lock_outcome
from tests.worker.shop import act, app, journal, task

__all__ = ["app"]


def work(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, "", tag, hold=hold)
    return tag


POLICIES: dict[str, dict[str, Any]] = {
    "wait": {"exclusive": Exclusive("key", ttl=600, order="arrived")},
    "ordered": {"exclusive": Exclusive("key", order="published")},
    "skip": {"exclusive": Exclusive("key", on_conflict="skip")},
    "strict": {"exclusive": Exclusive("key", on_conflict="raise")},
    "later": {"exclusive": Exclusive("key", on_conflict="reschedule")},
    "hasty": {"exclusive": Exclusive("key", give_up_after=0.5, on_give_up="skip", order="arrived")},
    "newest": {"exclusive": Exclusive("key", on_conflict="latest", order="arrived")},
    "full": {"exclusive": Exclusive("key", max_waiting=1)},
    "sole": {"unique": Unique("key")},
}
for name, options in POLICIES.items():
    task(name=f"{__name__}.{name}", **options)(work)


@lock_outcome.connect
def note(sender: str | None, outcome: LockOutcome, **_: Any) -> None:
    current = current_task.request.id if current_task else None
    journal.write("outcome", sender=sender, current=current, **asdict(outcome))
    raise RuntimeError("a receiver that fails")


class Fields(logging.Handler):
    """Puts the fields of each record on the record of the test."""

    def emit(self, record: logging.LogRecord) -> None:
        names = ("outcome", *LockOutcome.__slots__[1:])
        fields = {name: getattr(record, name) for name in names if hasattr(record, name)}
        if fields:
            journal.write("line", text=record.getMessage(), **fields)


logging.getLogger("celery_exclusive").addHandler(Fields())
