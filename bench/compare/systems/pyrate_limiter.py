"""pyrate-limiter: a log of starts in Redis; a body above the rate sleeps in its slot."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "pyrate-limiter in the body"
SERVER = "redis"
DEFAULT = RATE = "Limiter(RedisBucket.init([Rate(10, Duration.SECOND)], redis, key)).try_acquire(key)"
TUNED = ""
PACKAGES = ("pyrate-limiter", "celery", "kombu", "redis")
READY = _celery.READY
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    @cache
    def limiter(key: str) -> Any:  # in the child that runs the body: it starts a thread
        from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
        from redis import Redis

        return Limiter(RedisBucket.init([Rate(place.rate, Duration.SECOND)], Redis.from_url(place.url), key))

    @_celery.app(place).task(name="compare.work")
    def run(key: str, tag: str) -> None:
        limiter(key).try_acquire(key)
        body.run(place.folder, tag)

    return run


work, send, _ = _celery.ways(task)
