"""How long after its worker is killed a late-ack task begins again, on Redis and with default settings."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import size
from bench.row import OURS, Figure, Row
from bench.tally import Tally
from bench.worker import Worker
from tests.servers import RedisServer

TTL, ROUNDS = 3, 3
LATE = f"{OURS}, late"
HOUR = 3600.0
"""Redis' `visibility_timeout`, after which plain Celery's broker delivers the message again."""


def run() -> list[Row]:
    what = f"a killed worker's late-ack task begins again (its ttl of {TTL} s = 1; plain Celery: an hour)"
    rounds = [seconds_until_it_begins_again() / TTL for _ in range(size.scaled(ROUNDS))]
    figures = {"plain Celery": Figure.of([HOUR / TTL]), LATE: Figure.of(rounds)}
    return [Row("kill", what, "times", 1 + 1 / TTL, figures, ours=LATE)]


def seconds_until_it_begins_again(**conf: Any) -> float:
    """Seconds from the kill until the body begins in another worker, which waits for it idly."""
    conf = {"exclusive_ttl": TTL, **conf}
    with TemporaryDirectory() as folder, RedisServer() as server, ExitStack() as stack:
        tallies = [Tally(Path(folder, name), 1) for name in ("doomed", "other")]
        doomed, other = (
            stack.enter_context(Worker(LATE, server.url, folder, slots=1, tally=tally.path, **conf))
            for tally in tallies
        )
        doomed.task.apply_async(("key", 0, 3_600), queue="kill")
        doomed.consume("kill")
        tallies[0].wait_for_begin_of(0)
        other.consume("kill")
        killed = time.monotonic()
        doomed.kill()
        return tallies[1].wait_for_begin_of(0) - killed
