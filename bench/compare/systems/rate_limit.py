"""Celery's own `rate_limit`: of each worker, and of the task with all its keys."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "Celery's rate_limit"
SERVER = "redis"
DEFAULT = RATE = 'rate_limit="10/s"'
TUNED = ""
PACKAGES = ("celery", "kombu", "redis")
READY = _celery.READY
LACKS: dict[str, str] = {}


@cache
def task(place: Place) -> Any:
    @_celery.app(place).task(name="compare.work", rate_limit=f"{place.rate}/s")
    def run(_key: str, tag: str) -> None:
        body.run(place.folder, tag)

    return run


work, send, _ = _celery.ways(task)
