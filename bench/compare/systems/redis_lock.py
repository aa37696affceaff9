"""A lock of redis-py around the body of the task."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "redis-py Lock in the body"
SERVER = "redis"
DEFAULT = "with client.lock(key):"
TUNED = f"timeout=60, {_celery.LATE}"
PACKAGES = ("redis", "celery", "kombu")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
KEYS = "lock-*"
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    from redis import Redis

    client = Redis.from_url(place.url)
    timeout = place.timeout or (60 if place.is_tuned else None)

    @_celery.app(place).task(name="compare.work")
    def run(key: str, tag: str) -> None:
        with client.lock(f"lock-{key}", timeout=timeout):
            body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
