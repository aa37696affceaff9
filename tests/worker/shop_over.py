"""Tasks whose wait in line may end before their turn: they give up, or a newer call replaces them."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, doors, task

__all__ = ["app"]
GIVE_UP = Exclusive("key", give_up_after=2)
LATEST = Exclusive("key", on_conflict="latest")
PUBLISHED = {"order": "published"}
OPTIONS = {
    "hasty": {"exclusive": GIVE_UP},
    "hasty_skip": {"exclusive": GIVE_UP.replace(on_give_up="skip")},
    "hasty_later": {"exclusive": GIVE_UP.replace(on_conflict="reschedule", on_give_up="skip")},
    "hasty_ordered": {"exclusive": GIVE_UP.replace(on_give_up="skip", **PUBLISHED)},
    "latest": {"exclusive": LATEST},
    "latest_two": {"exclusive": LATEST.replace(limit=2)},
    "latest_ordered": {"exclusive": LATEST.replace(**PUBLISHED)},
    "latest_unique": {"exclusive": LATEST, "unique": Unique(("key", "tag"))},
    "latest_quiet": {"exclusive": LATEST.replace(skip_result="replaced")},
}


def work(self: Task, key: str, tag: str = "", hold: bool = False, again: bool = False) -> str:
    act(self, key, tag, hold=hold and not self.request.retries)
    if again and not self.request.retries:
        raise self.retry(countdown=0)
    return tag


for name, options in OPTIONS.items():
    task(name=f"{__name__}.{name}", **options)(work)


@task()
def collect(self: Task, results: object) -> object:
    doors.rpush("collected", repr(results))
    return results
