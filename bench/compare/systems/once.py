"""celery-once: duplicates are refused when they are called."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "celery-once"
SERVER = "redis"
DEFAULT = 'base=QueueOnce, once={"keys": ["key"]}'
TUNED = f'"graceful": True, {_celery.LATE}'
PACKAGES = ("celery-once", "celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
REFUSES = True
KEYS = "qo_*"
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    from celery_once import QueueOnce

    app = _celery.app(place)
    backend = {"backend": "celery_once.backends.Redis", "settings": {"url": place.url}}
    app.conf.ONCE = backend
    once: dict[str, Any] = {"keys": ["key"]}
    if place.is_tuned:
        once["graceful"] = True
    if place.timeout:
        once["timeout"] = place.timeout

    @app.task(name="compare.work", base=QueueOnce, once=once)
    def run(key: str, tag: str) -> None:  # noqa: ARG001 - the key is the lock's
        body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
