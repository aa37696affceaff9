"""The cost of a task whose body does nothing, in a prefork worker of two, each call with a key of its own."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from bench import cpu, peers, size
from bench.clock import interleaved
from bench.row import OURS, Row, shares
from bench.tally import Tally, span
from bench.tasks import BARE_LOCK, KEPT, OUR_CLIENT, OUR_CLIENT_LATE
from bench.worker import Worker
from tests.servers import RedisServer

TASKS, ROUNDS, TURNS, SLOTS = 250, 5, 2, 2
LATE = f"{OURS}, late"
EARLY = [KEPT, BARE_LOCK, OUR_CLIENT, OURS, *peers.LOCKS]
OF_LATE = ["bare, late", OUR_CLIENT_LATE, LATE]


def run() -> list[Row]:
    absent = peers.missing("python-redis-lock")
    names = ["bare", *(name for name in EARLY if name not in absent), *OF_LATE]
    with TemporaryDirectory() as folder, RedisServer() as server, ExitStack() as stack:
        runs = {name: _Runs(name, server, folder, stack) for name in names}
        for one in runs.values():
            one.start()
        walls = interleaved(
            {name: one.measure for name, one in runs.items()}, size.scaled(ROUNDS), size.scaled(TURNS)
        )
    absent |= peers.missing("celery-once")
    early = {name: wall for name, wall in walls.items() if name not in OF_LATE}
    late = {name: walls[name] for name in OF_LATE}
    return [
        Row(
            "noop", "no-op task with `exclusive=`, prefork (plain task = 1)", "share", 0.92,
            shares(early, "bare"),
            floor=BARE_LOCK, missing=absent, notes=_notes(runs, list(early)),
        ),
        Row(
            "noop-late", "no-op task with `exclusive=`, late acknowledgement and `recover` (plain task = 1)",
            "share", 0.86,
            shares(late, "bare, late"), floor=OUR_CLIENT_LATE, ours=LATE, notes=_notes(runs, OF_LATE),
        ),
    ]  # fmt: skip


def _notes(runs: dict[str, _Runs], names: list[str]) -> dict[str, float]:
    worker = {f"{name}, us of the worker": runs[name].worker_cost for name in names}
    return worker | {f"{name}, us of Redis": runs[name].redis_cost for name in names}


class _Runs:
    """A contender's worker, and what its rounds have cost."""

    def __init__(self, contender: str, server: RedisServer, folder: str, stack: ExitStack) -> None:
        self._tally = Tally(Path(folder, contender), size.scaled(TASKS))
        self._worker = stack.enter_context(
            Worker(contender, server.url, folder, slots=SLOTS, tally=self._tally.path)
        )
        self._name, self._server, self._numbers = contender, server, count()
        self._tasks, self._aside = size.scaled(TASKS), f"{contender} aside"
        self._of_worker: list[float] = []
        self._of_redis: list[float] = []

    def start(self) -> None:
        self._worker.consume(self._name)

    @property
    def worker_cost(self) -> float:
        """Microseconds of the processor per task that the worker's processes need."""
        return mean(self._of_worker) / self._tasks * 1e6

    @property
    def redis_cost(self) -> float:
        """Microseconds of the processor per task that the Redis needs."""
        return mean(self._of_redis) / self._tasks * 1e6

    def measure(self) -> float:
        """Seconds from the first start to the last end."""
        for number in range(self._tasks):
            key = f"{self._name} {next(self._numbers)}"
            self._worker.task.apply_async((key, number), queue=self._aside)
        self._tally.clear()
        worker, redis = self._worker.spent(), cpu.of_redis(self._server)
        with self._server.client() as client:
            client.rename(self._aside, self._name)  # so all of them are there at once
        self._tally.wait_for_end(self._tasks)
        self._of_worker.append(self._worker.spent() - worker)
        self._of_redis.append(cpu.of_redis(self._server) - redis)
        return span(self._tally.spells())
