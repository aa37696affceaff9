"""The recipe of Celery's cookbook: cache.add and cache.delete of Django's cache in the body."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "cookbook recipe"
SERVER = "redis"
DEFAULT = "if cache.add(lock_id, oid, 600): ... finally: cache.delete(lock_id)"
TUNED = _celery.LATE
PACKAGES = ("django", "celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
KEYS = "*lock-*"
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    import time

    from django.core.cache.backends.redis import RedisCache

    cache, expire = RedisCache(place.url, {}), place.timeout or 600

    @_celery.app(place).task(name="compare.work")
    def run(key: str, tag: str) -> None:
        expires_at = time.monotonic() + expire
        if not cache.add(f"lock-{key}", tag, expire):
            body.note(place.folder, "skipped", tag)
            return
        try:
            body.run(place.folder, tag)
        finally:
            if time.monotonic() < expires_at:
                cache.delete(f"lock-{key}")

    return run


work, send, chord = _celery.ways(task)
