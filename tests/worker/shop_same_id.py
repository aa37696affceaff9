"""Tasks that are called again and again under an id of the caller's own."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, noted, task

__all__ = ["app"]
POLICIES: dict[str, dict[str, Any]] = {
    "unique": {"unique": Unique("key")},
    "skip": {"exclusive": Exclusive("key", on_conflict="skip")},
    "raise": {"exclusive": Exclusive("key", on_conflict="raise")},
    "give up": {"exclusive": Exclusive("key", on_conflict="reschedule", give_up_after=1)},
    "give up in line": {"exclusive": Exclusive("key", give_up_after=1)},
    "full": {"exclusive": Exclusive("key", max_waiting=1)},
    "both": {"unique": Unique("tag"), "exclusive": Exclusive("key", on_conflict="skip")},
}


def body(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """The run with the tag "replaced" is replaced by another call of its task."""
    act(self, key, tag, hold=hold)
    if tag == "replaced":
        raise self.replace(self.s(key, "replacement"))
    return tag


for name, options in POLICIES.items():
    task(name=f"{__name__}.{name}", **options)(body)


@task()
def following(self: Task, given: Any) -> Any:
    noted("following", self, "", given=given)
    return given
