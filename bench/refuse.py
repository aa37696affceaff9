"""How many duplicates one producer is refused in a second, of the raw SET NX that its client manages."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

from bench import peers, size
from bench.clock import SLICES, interleaved, one_processor, per_call
from bench.row import OURS, Figure, Row, shares
from bench.tasks import make
from tests.servers import RedisServer

CALLS, ROUNDS, KEYS = 100, 9, 100
BURST = 500
UNIQUE = f"{OURS}, unique"


def run() -> list[Row]:
    with one_processor(), RedisServer() as broker, RedisServer() as other:
        return [
            _row("refuse", "duplicates refused by one producer, one Redis (raw SET NX = 1)", broker, broker),
            _row(
                "refuse-apart",
                "duplicates refused by one producer, locks in another Redis (raw SET NX = 1)",
                broker,
                other,
            ),
            _bursts("refuse-bursts", f"{BURST} calls on {KEYS} keys (SET NX and `delay()` = 1)", broker),
        ]


def _contenders() -> tuple[list[str], dict[str, str]]:
    """Return the contenders that are here, and why the others are not."""
    absent = peers.missing("celery-once", *peers.UNIQUE)
    return [UNIQUE, *(each for each in peers.UNIQUE if each not in absent)], absent


def _row(name: str, what: str, broker: RedisServer, store: RedisServer) -> Row:
    names, absent = _contenders()
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


def _bursts(name: str, what: str, broker: RedisServer) -> Row:
    """Calls of all keys in any order, each of which is sent once, since all keys are free at the begin."""
    names, absent = _contenders()
    turns = random.Random(1).choices(range(KEYS), k=size.scaled(BURST))
    bare = make("bare", broker.url)
    with broker.client() as client:

        def guarded(key: str) -> None:
            if client.set(f"raw {key}", "1", nx=True, px=600_000):
                bare.delay(key)

        calls = {each: make(each, broker.url, store=broker.url).delay for each in names}
        measured = interleaved(
            {each: _burst(call, client, turns) for each, call in (calls | {"SET NX": guarded}).items()},
            size.scaled(ROUNDS),
        )
    notes = {"calls in a second": 1e6 / Figure.of(measured[UNIQUE]).median}
    figures = shares(measured, "SET NX")
    return Row(name, what, "share", 0.85, figures, ours=UNIQUE, missing=absent, notes=notes)


def _burst(call: Callable[[str], object], client: Any, turns: list[int]) -> Callable[[], float]:
    def measure() -> float:
        client.flushall()
        began = time.perf_counter()
        for turn in turns:
            call(f"key {turn}")
        seconds = time.perf_counter() - began
        if client.llen("celery") != len(set(turns)):
            raise AssertionError("a duplicate was sent")
        return seconds / len(turns) * 1e6

    return measure


def _duplicates(call: Callable[[str], object]) -> Callable[[], object]:
    """Hold all keys; return what calls with each of them in turn."""
    keys = [f"key {number}" for number in range(KEYS)]
    for key in keys:
        call(key)
    turns = cycle(keys)
    return lambda: call(next(turns))
