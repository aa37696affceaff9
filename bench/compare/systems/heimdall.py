"""celery-heimdall: the caller of a duplicate gets the id of the first call."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "celery-heimdall"
SERVER = "redis"
DEFAULT = 'base=HeimdallTask, heimdall={"unique": True, "key": ...}'
TUNED = f'"unique_timeout": 60, "unique_lock_blocking": False, {_celery.LATE}'
PACKAGES = ("celery-heimdall", "celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
REFUSES = True
KEYS = "h-lock:*"
RATE = 'base=HeimdallTask, heimdall={"rate_limit": RateLimit((10, 1)), "key": ...}'
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    from celery_heimdall import HeimdallTask, RateLimit

    heimdall: dict[str, Any] = {"key": lambda args, _kwargs: args[0]}
    heimdall |= {"rate_limit": RateLimit((place.rate, 1))} if place.rate else {"unique": True}
    if place.timeout or place.is_tuned:
        heimdall["unique_timeout"] = place.timeout or 60
    if place.is_tuned:
        heimdall["unique_lock_blocking"] = False  # else each run waits a second for the lock of its own call

    @_celery.app(place).task(name="compare.work", base=HeimdallTask, heimdall=heimdall)
    def run(key: str, tag: str) -> None:  # noqa: ARG001 - the key is the lock's
        body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
