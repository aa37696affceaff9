"""What it costs to publish a group of 10,000 signatures, unique and plain, in one run."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery, group

from celery_exclusive import Unique, install
from tests.servers import RedisServer

SIZE, ROUNDS = 10_000, 3


def run(server: RedisServer) -> None:
    app = install(Celery("bench", broker=server.url, backend=server.url, set_as_current=False))

    @app.task(name="bench.plain", shared=False)
    def plain(n: int) -> None: ...

    @app.task(name="bench.unique", shared=False, unique=Unique("n"))
    def unique(n: int) -> None: ...

    app.finalize()
    rounds: dict[Any, list[float]] = {task: [] for task in (plain, unique)}
    for _ in range(ROUNDS):
        for task, times in rounds.items():
            times.append(_publish(task))
    fastest = {task: min(times) for task, times in rounds.items()}
    print(f"a group of {SIZE:,}: plain {fastest[plain]:.1f} s, unique {fastest[unique]:.1f} s,")
    each = (fastest[unique] - fastest[plain]) / SIZE * 1e6
    print(f"  {fastest[unique] / fastest[plain]:.2f}x, {each:.0f} us more for each")
    app.close()


def _publish(task: Any) -> float:
    with task.app.connection() as connection:
        connection.default_channel.client.flushall()
    began = time.perf_counter()
    group(task.s(n) for n in range(SIZE)).apply_async()
    return time.perf_counter() - began
