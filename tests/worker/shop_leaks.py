"""Tasks with arguments that nobody may read, and with keys that nobody would choose."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]


def work(self: Task, token: str, tag: str = "", hold: bool = False, again: bool = False) -> str:
    act(self, "", tag, hold=hold)
    if again and self.request.retries == 0:
        raise self.retry(countdown=0)
    return tag


POLICIES: dict[str, dict[str, Any]] = {
    "wait": {"exclusive": Exclusive("token", order="arrived")},
    "skip": {"exclusive": Exclusive("token", on_conflict="skip")},
    "strict": {"exclusive": Exclusive("token", on_conflict="raise")},
    "later": {"exclusive": Exclusive("token", on_conflict="reschedule", give_up_after=0.5)},
    "hasty": {"exclusive": Exclusive("token", give_up_after=0.5, order="arrived")},
    "replaced": {"exclusive": Exclusive("token", on_conflict="latest", order="arrived")},
    "full": {"exclusive": Exclusive("token", max_waiting=1)},
    "quiet": {"exclusive": Exclusive("token", max_waiting=1, on_full="skip")},
    "lost": {"exclusive": Exclusive("token", ttl=600)},
    "sole": {"unique": Unique("token")},
}
for name, options in POLICIES.items():
    task(name=f"{__name__}.{name}", **options)(work)


@task(exclusive=Exclusive(key="{key}"))
def patient(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, "", tag, hold=hold)
    return tag


@task(exclusive=Exclusive(key="{key}", on_conflict="raise"))
def hostile(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, "", tag, hold=hold)
    return tag
