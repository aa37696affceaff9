"""limits: a moving window in the body; a call above it is a retry, when its oldest start will have left."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "limits in the body"
SERVER = "redis"
DEFAULT = RATE = (
    "if not MovingWindowRateLimiter(...).hit(item, key): raise self.retry(countdown=until the reset)"
)
TUNED = ""
PACKAGES = ("limits", "celery", "kombu", "redis")
READY = _celery.READY
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    import time

    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    limiter, item = MovingWindowRateLimiter(RedisStorage(place.url)), RateLimitItemPerSecond(place.rate)

    @_celery.app(place).task(name="compare.work", bind=True, max_retries=None)
    def run(self: Any, key: str, tag: str) -> None:
        if not limiter.hit(item, key):
            raise self.retry(countdown=max(limiter.get_window_stats(item, key).reset_time - time.time(), 0))
        body.run(place.folder, tag)

    return run


work, send, _ = _celery.ways(task)
