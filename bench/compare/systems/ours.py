"""Celery-exclusive, whose calls wait in line."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.compare import body
from bench.compare.place import Place
from bench.compare.systems import _celery

TITLE = "celery-exclusive, exclusive="
SERVER = "redis"
DEFAULT = 'exclusive=Exclusive("doc_id")'
TUNED = _celery.LATE
PACKAGES = ("celery", "kombu", "redis")
READY, RECEIVED = _celery.READY, _celery.RECEIVED
KEYS = ""
LACKS = {"stuck": "its lease has no time to live in Redis; see the row above"}


@cache
def task(place: Place) -> Any:
    from celery_exclusive import Exclusive, install

    if place.is_bare:

        @_celery.app(place).task(name="compare.work")
        def bare(doc_id: str, tag: str) -> None:  # noqa: ARG001 - as below
            body.run(place.folder, tag)

        return bare

    option = Exclusive("doc_id", ttl=place.timeout) if place.timeout else Exclusive("doc_id")

    @install(_celery.app(place)).task(name="compare.work", exclusive=option)
    def run(doc_id: str, tag: str) -> None:  # noqa: ARG001 - the lock's
        body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
