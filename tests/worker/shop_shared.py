"""Two tasks of the shop that lock the very same thing."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, task

__all__ = ["app"]
SHARED = Exclusive(key="shared:{key}")


@task(exclusive=SHARED)
def near(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=SHARED)
def far(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
