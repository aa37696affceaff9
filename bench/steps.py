"""The functions of the package that one task enters: in the publisher, the main process, and the child.

The figures say how far a reader has to go to follow a task. They are the same on any machine.
`BENCH_FULL=1` prints the functions, too.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench import size, trace
from bench.row import OURS
from bench.tally import Tally
from bench.trace import Call, Trace
from bench.worker import Worker
from tests.servers import RedisServer

TASKS = {"exclusive": OURS, "unique": f"{OURS}, unique"}
WARM_UP, TRACED = 2, size.scaled(5)
QUIET = 0.3
"""Seconds without a call after which a process has nothing left to do for a task."""


class Steps(NamedTuple):
    """The files and the functions that were entered, all calls, and the moves from one file to another."""

    files: int
    functions: int
    calls: int
    moves: int

    @classmethod
    def of(cls, calls: list[Call]) -> Steps:
        moves = sum(one.file != following.file for one, following in pairwise(calls))
        return cls(len({call.file for call in calls}), len(set(calls)), len(calls), moves)


def run() -> None:
    print(f"the way of one task: {' / '.join(Steps._fields)} of the package")
    for name, contender in TASKS.items():
        for process, calls in measure(contender).items():
            print(f"  {name:<10} {process:<13} {' / '.join(map(str, Steps.of(calls)))}")
            if size.FULL:
                print("".join(f"    {call.file}  {call.function}\n" for call in calls), end="")


def measure(contender: str) -> dict[str, list[Call]]:
    """Return the calls of one task in each process: the ones that most of the traced tasks make."""
    traced: dict[str, list[tuple[Call, ...]]] = {}
    with TemporaryDirectory() as folder, RedisServer() as server:
        tally = Tally(Path(folder, "tally"), WARM_UP + TRACED)
        conf: dict[str, Any] = {"task_default_queue": "steps"}
        with Worker(contender, server.url, folder, slots=1, tally=tally.path, trace=True, **conf) as worker:
            worker.consume("steps")
            publisher = Trace(folder)
            for number in range(WARM_UP + TRACED):
                before = _settled(folder)
                with publisher.on():
                    worker.task.delay(f"key {number}", number)
                tally.wait_for_end(number + 1)
                after = _settled(folder)
                if number < WARM_UP:
                    continue
                for pid in after:
                    calls = trace.read(trace.file_of(folder, pid), before.get(pid, 0))
                    traced.setdefault(_name(pid, worker), []).append(tuple(calls))
    return {name: list(Counter(runs).most_common(1)[0][0]) for name, runs in traced.items()}


def _settled(folder: str) -> dict[int, int]:
    """Wait until no process notes another call, and return the size of the file of each."""
    sizes: dict[int, int] = {}
    while True:
        before, sizes = sizes, {int(f.stem): f.stat().st_size for f in sorted(Path(folder).glob("*.calls"))}
        if sizes == before:
            return sizes
        time.sleep(QUIET)


def _name(pid: int, worker: Worker) -> str:
    return {os.getpid(): "publisher", worker.pid: "main process"}.get(pid, "child")
