"""Tasks whose retries keep the lock of their run."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, LeaseLost, Unique
from tests.worker.shop import act, app, doors, noted, task

__all__ = ["app"]

KEPT = Exclusive(key="kept:{key}", keep_on_retry=True)


def body(
    self: Task,
    key: str,
    tag: str = "",
    countdown: float = 0,
    retries: int = 1,
    hold: bool = False,
    **retry: Any,
) -> str:
    """It is retried so many times, and then returns. `hold` holds its first attempt."""
    act(self, key, tag, hold=hold and not self.request.retries)
    if self.request.retries < retries:
        raise self.retry(countdown=countdown, **retry)
    return tag


kept = task(name=f"{__name__}.kept", exclusive=KEPT)(body)
ordered = task(name=f"{__name__}.ordered", exclusive=KEPT.replace(order="published"))(body)
skip = task(name=f"{__name__}.skip", exclusive=KEPT.replace(on_conflict="skip"))(body)
refuse = task(name=f"{__name__}.refuse", exclusive=KEPT.replace(on_conflict="raise"))(body)
later = task(name=f"{__name__}.later", exclusive=KEPT.replace(on_conflict="reschedule"))(body)
two = task(name=f"{__name__}.two", exclusive=KEPT.replace(limit=2))(body)
both = task(name=f"{__name__}.both", exclusive=KEPT, unique=Unique("tag"))(body)
released = task(name=f"{__name__}.released", exclusive=KEPT.replace(keep_on_retry=False))(body)


class Passing(Exception):
    pass


@task(exclusive=KEPT, autoretry_for=(Passing,), max_retries=2, default_retry_delay=1)
def failing(self: Task, key: str, tag: str = "") -> None:
    """It fails until it has no retries left."""
    act(self, key, tag)
    raise Passing(tag)


@task(exclusive=KEPT)
def closing(self: Task, key: str, tag: str = "") -> str:
    """Its first attempt goes on when its retry is published, and holds the lock meanwhile."""
    if self.request.retries:
        act(self, key, tag)
        return tag
    try:
        raise self.retry(countdown=0)
    finally:
        try:
            self.lease.check()
        except LeaseLost:
            noted("lost", self, tag)
        act(self, key, tag, hold=True)


@task(exclusive=KEPT)
def moving(self: Task, key: str, tag: str = "") -> str:
    """Its retry has another key."""
    act(self, key, tag)
    if not self.request.retries:
        raise self.retry(args=(f"{key} elsewhere", tag), countdown=5)
    return tag


@task(exclusive=KEPT)
def unsent(self: Task, key: str, tag: str = "") -> str:
    """Its retry goes to a broker that is not there."""
    act(self, key, tag)
    if tag == "retried":
        with app.connection("redis://127.0.0.1:1/0") as nowhere:
            self.retry(countdown=5, connection=nowhere, retry=False)
    return tag


def pause(self: Task, *_: Any) -> None:
    """Hold a run whose retry is published, and which has not ended."""
    noted("retried", self, "hook")
    doors.blpop("door:hook", 100)


hooked = task(name=f"{__name__}.hooked", exclusive=KEPT, on_retry=pause)(body)


@task()
def gather(self: Task, results: list[str]) -> list[str]:
    return results
