"""celery-singleton: the caller of a duplicate gets the id of the first call."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "celery-singleton"
SERVER = "redis"
DEFAULT = 'base=Singleton, unique_on=["key"]'
TUNED = f"lock_expiry=60, {_celery.LATE}"
PACKAGES = ("celery-singleton", "celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
REFUSES = True
KEYS = "SINGLETONLOCK_*"
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    from celery_singleton import Singleton

    options = {"lock_expiry": place.timeout or 60} if place.timeout or place.is_tuned else {}

    @_celery.app(place).task(name="compare.work", base=Singleton, unique_on=["key"], **options)
    def run(key: str, tag: str) -> None:  # noqa: ARG001 - the key is the lock's
        body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
