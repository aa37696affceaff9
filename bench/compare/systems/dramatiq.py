"""dramatiq: a queue in Redis; ConcurrentRateLimiter is the lock in the body, and a held lock is a retry."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "dramatiq"
SERVER = "redis"
DEFAULT = "with ConcurrentRateLimiter(backend, key, limit=1).acquire():"
TUNED = (
    "ttl=60_000, min_backoff=100, max_backoff=1_000, max_retries=None; "
    "RedisBroker(heartbeat_timeout=10_000, maintenance_chance=100_000)"
)
PACKAGES = ("dramatiq", "redis")
READY = "Worker process is ready for action."
KEYS = "lock-*"
PATIENCE = 180.0
"""Its heartbeat timeout is a minute, and maintenance is by chance."""
LACKS: dict[str, str] = {}
_PLACE = "COMPARE_PLACE"
"""The variable that tells the processes of the worker their place."""


@cache
def tasks(place: Place) -> dict[str, Any]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import GroupCallbacks
    from dramatiq.rate_limits import ConcurrentRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    tuned: dict[str, Any] = {"heartbeat_timeout": 10_000, "maintenance_chance": 100_000}
    backoff: dict[str, Any] = {"min_backoff": 100, "max_backoff": 1_000, "max_retries": None}
    if place.redelivery:
        tuned["heartbeat_timeout"] = place.redelivery * 1000
    broker = RedisBroker(url=place.url, **(tuned if place.is_tuned else {}))
    backend = RedisBackend(url=place.url)
    broker.add_middleware(GroupCallbacks(backend))
    dramatiq.set_broker(broker)
    ttl = {"ttl": (place.timeout or 60) * 1000} if place.timeout or place.is_tuned else {}

    @dramatiq.actor(**(backoff if place.is_tuned else {}))
    def run(key: str, tag: str) -> None:
        limiter = ConcurrentRateLimiter(backend, f"lock-{key}", limit=1, **ttl)
        with nullcontext() if place.is_bare else limiter.acquire():
            body.run(place.folder, tag)

    @dramatiq.actor
    def done() -> None:
        body.note(place.folder, "start", "done")

    return {"run": run, "done": done, "broker": broker}


def broker() -> Any:
    """Return the broker of this process; dramatiq's command calls it."""
    return tasks(Place.from_json(os.environ[_PLACE]))["broker"]


def work(place: Place) -> None:
    from dramatiq.cli import main, make_argument_parser

    os.environ[_PLACE] = place.to_json()
    words = [f"{__name__}:broker", "--processes", "1", "--threads", str(place.slots)]
    raise SystemExit(main(make_argument_parser().parse_args(words)))


def send(place: Place, key: str, tag: str) -> str:
    tasks(place)["run"].send(key, tag)
    return "sent"


def chord(place: Place, key: str, tags: list[str]) -> str:
    from dramatiq import group

    made = tasks(place)
    members = group([made["run"].message(key, tag) for tag in tags], broker=made["broker"])
    members.add_completion_callback(made["done"].message())
    members.run()
    return "sent"
