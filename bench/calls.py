"""Whole calls of a key with a rate or parts, beside plain ones: `make bench ROWS=calls`.

A call is published, waits or not, runs in a prefork worker of two, and its caller gets the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench import cpu, size
from bench.clock import interleaved
from bench.tally import Tally
from bench.tasks import OF_ROOM
from bench.worker import Worker
from tests.servers import RedisServer

CALLS, ROUNDS, TURNS, PARTS = 96, 3, 4, 8
_numbers = count()
SCENES: dict[str, Callable[[int], str]] = {
    "a key each": lambda _: f"own {next(_numbers)}",
    "eight keys": lambda number: f"shared {number // PARTS % 8}",
    "one key, with a line": lambda _: "one",
}


class Cost(NamedTuple):
    """Microseconds of a call: of the clock, and of the processors of caller, worker and Redis."""

    wall: float
    processor: float


def run() -> None:
    conf = {"task_ignore_result": False}
    with TemporaryDirectory() as folder, RedisServer() as server, ExitStack() as stack:
        tally = Tally(f"{folder}/tally", 1).path
        workers = {
            name: stack.enter_context(
                Worker(name, server.url, folder, slots=2, tally=tally, result_backend=server.url, **conf)
            )
            for name in OF_ROOM
        }
        for name, worker in workers.items():
            worker.consume(name)
        for scene, key_of in SCENES.items():
            costs: dict[str, list[Cost]] = {name: [] for name in workers}
            measures = {
                name: partial(_measure, worker, server, key_of, costs[name])
                for name, worker in workers.items()
            }
            interleaved(measures, size.scaled(ROUNDS), size.scaled(TURNS))
            print(f"a whole call, {scene}: us of the clock, of the processors, and times a plain one:")
            _show(costs)


def _measure(worker: Worker, server: RedisServer, key_of: Callable[[int], str], costs: list[Cost]) -> float:
    calls = size.scaled(CALLS)
    before, began = _spent(worker, server), time.perf_counter()
    results: list[Any] = [
        worker.task.apply_async((key_of(number),), {"part": f"part {number % PARTS}"}, queue=worker.contender)
        for number in range(calls)
    ]
    for result in results:
        result.get(timeout=600)
    wall = time.perf_counter() - began
    costs.append(Cost(*(1e6 * spent / calls for spent in (wall, _spent(worker, server) - before))))
    return wall


def _spent(worker: Worker, server: RedisServer) -> float:
    return time.process_time() + worker.spent() + cpu.of_redis(server)


def _show(costs: dict[str, list[Cost]]) -> None:
    plain = next(iter(costs.values()))
    for name, own in costs.items():
        shown = "  ".join(
            f"{median(mine):5.0f} ({median(a / b for a, b in zip(mine, base, strict=True)):.2f})"
            for mine, base in zip(zip(*own, strict=True), zip(*plain, strict=True), strict=True)
        )
        print(f"  {name:<34} {shown}", flush=True)
