"""Tasks whose wait in line may end before their turn: they give up, or a newer call replaces them."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, doors, journal, task

__all__ = ["app"]
SHARED = Exclusive(key="over:{key}")
GIVE_UP = SHARED.replace(give_up_after=2)
LATEST = SHARED.replace(on_conflict="latest")
OPTIONS: dict[str, dict[str, Any]] = {
    "patient": {"exclusive": SHARED},
    "hasty": {"exclusive": GIVE_UP},
    "hasty_skip": {"exclusive": GIVE_UP.replace(on_give_up="skip")},
    "hasty_later": {"exclusive": GIVE_UP.replace(on_conflict="reschedule", on_give_up="skip")},
    "hasty_ordered": {"exclusive": GIVE_UP.replace(on_give_up="skip", order="published")},
    "latest": {"exclusive": LATEST},
    "latest_two": {"exclusive": LATEST.replace(limit=2)},
    "latest_ordered": {"exclusive": LATEST.replace(order="published")},
    "latest_unique": {"exclusive": LATEST, "unique": Unique(("key", "tag"))},
    "latest_once": {"exclusive": LATEST.replace(order="published"), "unique": Unique(("key", "tag"))},
    "hasty_once": {"exclusive": GIVE_UP.replace(order="published"), "unique": Unique(("key", "tag"))},
    "latest_quiet": {"exclusive": LATEST.replace(skip_result="replaced")},
}


class Stuck(Task):  # type: ignore[type-arg]
    """Stops before its body, or before its end without one, if it is tagged so."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if kwargs.get("tag") == "stuck":
            journal.write("before", task=self.name, id=task_id, tag="stuck")
            doors.blpop(["door:before"], timeout=100)


def work(self: Task, key: str, tag: str = "", hold: bool = False, again: str = "") -> str:
    act(self, key, tag, hold=hold)
    if again == "retry":
        raise self.retry(countdown=0, kwargs={"tag": tag})
    if again == "replace":
        raise self.replace(self.si(key, tag=tag))
    return tag


for name, options in OPTIONS.items():
    task(base=Stuck, name=f"{__name__}.{name}", **options)(work)


@task()
def collect(self: Task, results: Any) -> Any:
    doors.rpush("collected", repr(results))
    return results
