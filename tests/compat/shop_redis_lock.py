"""Bodies around a lock of redis-py, as people write them by hand."""

from __future__ import annotations

from celery import Task
from redis.exceptions import LockError

from celery_exclusive import Exclusive
from tests.compat.shop import LOCK_EXPIRE, act, app, doors, task

__all__ = ["app"]


@task()
def outside_printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    """The work is below the block: the lock is released before it begins."""
    with doors.lock(f"outside-{key}", timeout=600, blocking_timeout=0) as acquired:
        if not acquired:
            return None
    return act(self, key, tag, hold=hold)


@task(exclusive=Exclusive("key", on_conflict="skip", skip_result=None))
def outside_ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(max_retries=1)
def caught_printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """The release of a lock that has expired raises LockError, too."""
    try:
        with doors.lock(f"caught-{key}", timeout=LOCK_EXPIRE, blocking_timeout=5):
            return act(self, key, tag, hold=hold)
    except LockError:
        raise self.retry(countdown=0) from None


@task(exclusive=Exclusive("key", ttl=LOCK_EXPIRE))
def caught_ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(max_retries=3)
def retried_printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Who finds the lock held tries three times again; thirty seconds are none here."""
    lock = doors.lock(f"retried-{key}", timeout=600)
    if not lock.acquire(blocking=False):
        raise self.retry(countdown=0)
    try:
        return act(self, key, tag, hold=hold)
    finally:
        lock.release()


@task(exclusive=Exclusive("key"))
def retried_ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
