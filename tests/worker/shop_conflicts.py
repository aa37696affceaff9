"""Tasks that meet a key which is taken, and do not wait in line for it."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, doors, task

__all__ = ["app"]


@task(exclusive=Exclusive("key", on_conflict="raise"))
def strict(self: Task, key: str, tag: str = "", hold: bool = False, again: bool = False) -> str:
    act(self, key, tag, hold=hold)
    if again and self.request.retries == 0:
        raise self.retry(countdown=0)
    return tag


@task(exclusive=Exclusive("key", on_conflict="reschedule"), max_retries=0)
def later(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return f"{tag}, {self.request.retries} retries"


@task(exclusive=Exclusive("key", on_conflict="reschedule", give_up_after=3))
def hasty(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(shared=False)
def collect(self: Task, results: object) -> object:
    doors.rpush("collected", repr(results))
    return results
