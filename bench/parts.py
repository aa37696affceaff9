"""One key that tenants share, and a rate, on a real worker: `make bench ROWS=parts`."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import size
from bench.tally import Spell, Tally
from bench.tasks import FAIR, ONE_LINE, TEN_A_SECOND
from bench.worker import Worker
from tests.servers import RedisServer

TASKS, QUIET, LIMIT, SECONDS = 1_000, 95, 5, 0.02
RATED = 100


def run() -> None:
    with TemporaryDirectory() as folder, RedisServer() as server, ExitStack() as stack:
        tasks = size.scaled(TASKS)
        print(f"a tenant with {tasks} tasks of 20 ms and 19 with 5 each, one key, limit {LIMIT}, 8 slots:")
        for name in (ONE_LINE, FAIR):
            tally, worker = _worker(name, server.url, folder, stack, tasks + QUIET)
            waits, makespan = _share(worker, tally, tasks)
            late = sorted(waits)[int(0.99 * len(waits))]
            print(
                f"  {name:<14} the 19 begin after {1000 * median(waits):.0f} ms, p99 {1000 * late:.0f} ms; "
                f"all take {makespan / ((tasks + QUIET) * SECONDS / LIMIT):.2f} of the least",
                flush=True,
            )
        count = size.scaled(RATED)
        tally, worker = _worker(TEN_A_SECOND, server.url, folder, stack, count)
        for number in range(count):
            worker.task.apply_async(("one", number, 0.001), queue="rate")
        worker.consume("rate")
        tally.wait_for_end(count)
        begun = sorted(spell.begun for spell in tally.spells())
        spans = [later - first for first, later in zip(begun, begun[10:], strict=False)]
        reached = (count - 10) / max(begun[-1] - begun[9], 0.001)
        print(f"  a rate of 10/s  {reached:.2f} begin a second; least time of 11 starts {min(spans):.3f} s")


def _worker(name: str, url: str, folder: str, stack: ExitStack, tasks: int) -> tuple[Tally, Worker]:
    tally = Tally(Path(folder, name), tasks)
    return tally, stack.enter_context(Worker(name, url, folder, slots=8, tally=tally.path))


def _share(worker: Worker, tally: Tally, tasks: int) -> tuple[list[float], float]:
    """Let one tenant publish all its tasks, and the others some of theirs meanwhile.

    Return the seconds from the call to the begin of each task of the others, and the makespan.
    """
    chance, queue = random.Random(7), f"parts {worker.name}"
    for number in range(tasks):
        worker.task.apply_async(("noisy", number, SECONDS), queue=queue)
    worker.consume(queue)
    tally.wait_for_begin_of(10)
    lasts = tasks * SECONDS / LIMIT
    pauses = [chance.expovariate(QUIET / (0.7 * lasts)) for _ in range(QUIET)]
    sent = list[float]()
    for number, pause in enumerate(pauses):
        time.sleep(pause)
        sent.append(time.monotonic())
        worker.task.apply_async((f"quiet {number % 19}", tasks + number, SECONDS), queue=queue)
    tally.wait_for_end(tasks + QUIET)
    spells: list[Spell] = tally.spells()
    waits = [spell.begun - at for spell, at in zip(spells[tasks:], sent, strict=True)]
    return waits, max(spell.ended for spell in spells) - min(spell.begun for spell in spells)
