"""A task whose limit is so large that it lets all in."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(exclusive=Exclusive("key", limit=1_000_000))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
