"""Celery-exclusive, whose duplicates are refused when they are called."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "celery-exclusive, unique="
SERVER = "redis"
DEFAULT = 'unique=Unique("doc_id")'
TUNED = _celery.LATE
PACKAGES = ("celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
REFUSES = True
KEYS = ""
LACKS = {"stuck": "its lease has no time to live in Redis; see the row above"}


@cache
def task(place: Place) -> Any:
    from celery_exclusive import Unique, install

    option = Unique("doc_id", ttl=place.timeout) if place.timeout else Unique("doc_id")

    @install(_celery.app(place)).task(name="compare.work", unique=option)
    def run(doc_id: str, tag: str) -> None:  # noqa: ARG001 - the lock's
        body.run(place.folder, tag)

    return run


work, _, chord = _celery.ways(task)


def send(place: Place, key: str, tag: str) -> str:
    return "sent" if task(place).delay(key, tag).outcome == "published" else "refused: skipped"
