"""The cost of publishing a group of 10,000 unique signatures, beside a plain group."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from celery import group

from bench import size
from bench.clock import interleaved
from bench.row import OURS, Row, times
from bench.tasks import make
from tests.servers import RedisServer

SIZE, ROUNDS = 10_000, 3
UNIQUE = f"{OURS}, unique"


def run() -> list[Row]:
    with RedisServer() as server:
        contenders = {name: _group(name, server) for name in ("bare", UNIQUE)}
        measured = interleaved(contenders, size.scaled(ROUNDS, full=7))
    what = "a group of 10,000 unique signatures (plain group = 1)"
    return [Row("group", what, "times", 1.15, times(measured, "bare"), ours=UNIQUE)]


def _group(name: str, server: RedisServer) -> Callable[[], float]:
    task, numbers = make(name, server.url), count()

    def measure() -> float:
        first = f"{name} {next(numbers)}"
        began = time.perf_counter()
        group(task.s(f"{first} {number}") for number in range(size.scaled(SIZE))).apply_async()
        seconds = time.perf_counter() - began
        with server.client() as client:
            client.delete("celery")
        return seconds

    return measure
