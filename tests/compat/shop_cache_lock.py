"""A lock object in Django's cache."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive.compat.cache_lock import CacheLock as OurCacheLock
from tests.compat.shop import act, app, cache, doors, noted, task

__all__ = ["app"]


class CacheLock:
    def __init__(self, cache_key: str, timeout: int | None = None) -> None:
        self._cache_key, self._timeout = cache_key, timeout

    def acquire(self) -> bool:
        if self.locked():
            return False
        cache.add(self._cache_key, 1, self._timeout)
        return True

    def release(self) -> None:
        cache.delete(self._cache_key)

    def locked(self) -> bool:
        return bool(cache.get(self._cache_key, 0) == 1)

    def __del__(self) -> None:
        self.release()


def guarded(guard: Any, task: Task, key: str, tag: str, hold: bool) -> str | None:
    """The same body for both locks."""
    if not guard.acquire():
        return None
    try:
        return act(task, key, tag, hold=hold)
    finally:
        guard.release()


@task()
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    return guarded(CacheLock(key, 600), self, key, tag, hold)


@task()
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    return guarded(OurCacheLock(key, 600), self, key, tag, hold)


class SlowCacheLock(CacheLock):
    """The same, with time between its two steps."""

    def locked(self) -> bool:
        is_locked = super().locked()
        noted("looked", task_of_race, self._cache_key)
        doors.blpop(["door:race"], timeout=100)
        return is_locked


@task()
def race_printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str | None:
    return guarded(SlowCacheLock(key, 600), self, key, tag, hold)


task_of_race = race_printed
