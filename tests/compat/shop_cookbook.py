"""The context manager of Celery's cookbook: shape 1 of what people run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Task

from celery_exclusive import Exclusive, Unique
from celery_exclusive.compat.cookbook import memcache_lock as our_memcache_lock
from tests.compat.shop import LOCK_EXPIRE, act, app, cache, task

__all__ = ["app"]


@contextmanager
def memcache_lock(lock_id: str, oid: str, lock_expire: float = LOCK_EXPIRE) -> Iterator[bool]:
    expires_at = time.monotonic() + lock_expire
    is_acquired = cache.add(lock_id, oid, lock_expire)
    try:
        yield is_acquired
    finally:
        if is_acquired and time.monotonic() < expires_at:
            cache.delete(lock_id)


@task()
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    with memcache_lock(f"{self.name}-lock-{key}", self.app.oid) as acquired:
        return act(self, key, tag, hold=hold) if acquired else None


@task()
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    with our_memcache_lock(f"{self.name}-lock-{key}", self.app.oid, LOCK_EXPIRE) as acquired:
        return act(self, key, tag, hold=hold) if acquired else None


@task(exclusive=Exclusive("key", ttl=LOCK_EXPIRE, on_conflict="skip", skip_result=None))
def declared(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task()
def daily_printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    """Not more than once a day, they hope."""
    with memcache_lock(f"daily-{key}", self.app.oid, 12 * 3600) as acquired:
        return act(self, key, tag, hold=hold) if acquired else None


@task(unique=Unique("key", period=12 * 3600))
def daily_ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
