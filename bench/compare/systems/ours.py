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
RATE = 'exclusive=Exclusive("doc_id", limit=None, rate="10/s")'
LACKS = {"stuck": "its lease has no time to live in Redis; see the row above"}


@cache
def task(place: Place) -> Any:
    from celery_exclusive import Exclusive, install

    app, options = _celery.app(place), dict[str, Any]()
    if not place.is_bare:
        install(app)
        given: dict[str, Any] = {"ttl": place.timeout} if place.timeout else {}
        if place.rate:
            given |= {"limit": None, "rate": f"{place.rate}/s"}
        options["exclusive"] = Exclusive("doc_id", **given)

    @app.task(name="compare.work", **options)
    def run(doc_id: str, tag: str) -> None:  # noqa: ARG001 - the lock's
        body.run(place.folder, tag)

    return run


work, send, chord = _celery.ways(task)
