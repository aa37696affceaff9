"""How many duplicates one producer is refused in a second, of the raw SET NX that its client manages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from bench import peers, size
from bench.clock import SLICES, interleaved, one_processor, per_call
from bench.row import OURS, Figure, Row, shares
from bench.tasks import make
from tests.servers import RedisServer

CALLS, ROUNDS, KEYS = 100, 9, 100
UNIQUE = f"{OURS}, unique"


def run() -> list[Row]:
    with one_processor(), RedisServer() as broker, RedisServer() as other:
        return [
            _row("refuse", "duplicates refused by one producer, of raw SET NX; one Redis", broker, broker),
            _row("refuse-apart", "the same, locks in another Redis", broker, other),
        ]


def _row(name: str, what: str, broker: RedisServer, store: RedisServer) -> Row:
    absent = peers.missing("celery-once", *peers.UNIQUE)
    names = [UNIQUE, *(each for each in peers.UNIQUE if each not in absent)]
    with broker.client() as queues, store.client() as client:
        queues.delete("celery")
        calls = {each: _duplicates(make(each, broker.url, store=store.url).delay) for each in names}
        calls["SET NX"] = _duplicates(lambda key: client.set(f"raw {key}", "1", nx=True, px=600_000))
        measures = {each: per_call(call, size.scaled(CALLS)) for each, call in calls.items()}
        measured = interleaved(measures, size.scaled(ROUNDS), SLICES)
        if queues.llen("celery") != len(names) * KEYS:
            raise AssertionError("a duplicate was sent")
    notes = {
        "refused in a second": 1e6 / Figure.of(measured[UNIQUE]).median,
        "SET NX, us": Figure.of(measured["SET NX"]).median,
    }
    figures = shares(measured, "SET NX")
    return Row(name, what, "share", 0.75, figures, ours=UNIQUE, missing=absent, notes=notes)


def _duplicates(call: Callable[[str], object]) -> Callable[[], object]:
    """Hold all keys; return what calls with each of them in turn."""
    keys = [f"key {number}" for number in range(KEYS)]
    for key in keys:
        call(key)
    turns = cycle(keys)
    return lambda: call(next(turns))
