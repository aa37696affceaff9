"""The memory of a Redis for each held lease, and the cost of acquiring beside them."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import Any

from bench import size
from bench.clock import one_processor, timed
from bench.ours import pair
from bench.row import OURS, Figure, Row, times
from celery_exclusive.core.operations import Acquire
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer

LEASES = 100_000
FLOOR = "SET NX PX of a key and a token, as redis-py's Lock"
TTL = 600_000_000


def run() -> list[Row]:
    held = size.scaled(LEASES, full=1_000_000)
    with RedisServer() as server, server.client() as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(held):
            pipeline.set(f"task/{number}", token_hex(16), nx=True, px=TTL)
        bare = _bytes_of(client, pipeline.execute, held)
    with one_processor(), RedisServer() as server, RedisServer() as empty, server.client() as client:
        store, beside_none = open_store(server.url), open_store(empty.url)
        ours = _bytes_of(client, lambda: _hold(store, held), held)
        measured = timed({"beside none": partial(pair, beside_none), OURS: partial(pair, store)})
    what = f"bytes per held lease, at {held:,}"
    figures = {FLOOR: Figure.of([bare]), OURS: Figure.of([ours])}
    return [
        Row("memory", what, "count", 289, figures, floor=FLOOR),
        Row("beside", f"acquire and release beside {held:,} other leases (beside none = 1)", "times", 1.1,
            times(measured, "beside none")),
    ]  # fmt: skip


def _hold(store: Any, count: int) -> None:
    for number in range(count):
        store.apply(f"task/{number}", Acquire("bench/1", token_hex(8), TTL))


def _bytes_of(client: Any, fill: Any, count: int) -> float:
    """Bytes of the server's memory that filling it takes, for each of so many."""
    before = client.info("memory")["used_memory"]
    fill()
    return float(client.info("memory")["used_memory"] - before) / count
