"""Tasks whose key is a text, and bodies that take locks themselves."""

from __future__ import annotations

import time

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import Exclusive, ExclusiveError, lock
from tests.worker.shop import act, app, journal, task

__all__ = ["app"]


@task(exclusive=Exclusive(key="repo:{number}"))
def sync(self: Task, number: int, tag: str = "", hold: bool = False) -> str:
    act(self, str(number), tag, hold=hold)
    return tag


@task(exclusive=Exclusive(key="repo:{number}", on_conflict="skip"))
def peek(self: Task, number: int, tag: str = "") -> str:
    act(self, str(number), tag)
    return tag


@task(exclusive=Exclusive(key="repo:{number}"))
def again(self: Task, number: int) -> list[str]:
    """What becomes of those who want what this run holds."""
    with lock(f"repo:{number}", reentrant=True) as lease:
        assert lease is self.lease
    self.lease.check()
    try:
        with lock(f"repo:{number}", wait=1000):
            return ["two at once"]
    except ExclusiveError as error:
        return [str(error), sync.apply((number,), {"tag": "inside"}).get(disable_sync_subtasks=False)]


@task(soft_time_limit=8)
def linger(self: Task, text: str) -> str:
    """Holds a lock until its time is over, and then another one."""
    try:
        with lock(text):
            journal.write("locked", tag=text)
            time.sleep(60)
    except SoftTimeLimitExceeded:
        return "over"
    return "never"


@task()
def hold_for_ever(self: Task, text: str) -> None:
    with lock(text, ttl=9):
        journal.write("locked", tag=text)
        time.sleep(1000)
