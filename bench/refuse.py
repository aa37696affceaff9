"""How many duplicates one producer is refused in a second, of the raw SET NX that its client manages."""

from __future__ import annotations

from typing import Any

from bench import peers, size
from bench.clock import SLICES, interleaved, per_call
from bench.row import OURS, Figure, Row, shares
from bench.tasks import make
from tests.servers import RedisServer

CALLS, ROUNDS = 50, 9
UNIQUE = f"{OURS}, unique"


def run() -> list[Row]:
    absent = peers.missing("celery-once", *peers.UNIQUE)
    names = [UNIQUE, *(name for name in peers.UNIQUE if name not in absent)]
    with RedisServer() as server, server.client() as client:
        client.set("raw", "1")
        tasks = {name: make(name, server.url) for name in names}
        calls: dict[str, Any] = {name: _duplicate(task, name) for name, task in tasks.items()}
        calls["SET NX"] = lambda: client.set("raw", "2", nx=True, px=30_000)
        measures = {name: per_call(call, size.scaled(CALLS)) for name, call in calls.items()}
        measured = interleaved(measures, size.scaled(ROUNDS), SLICES)
        if client.llen("celery") != len(names):
            raise AssertionError("a duplicate was sent")
    notes = {"refused in a second": 1e6 / Figure.of(measured[UNIQUE]).median}
    return [
        Row(
            "refuse", "duplicates refused by one producer, of raw SET NX", "share", 0.40,
            shares(measured, "SET NX"), ours=UNIQUE, missing=absent, notes=notes,
        )
    ]  # fmt: skip


def _duplicate(task: Any, key: str) -> Any:
    task.delay(key)
    return lambda: task.delay(key)
