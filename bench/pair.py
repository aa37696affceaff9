"""Acquire and release, uncontended: our store, and what people use today, against a bare socket."""

from __future__ import annotations

from functools import partial

import redis

from bench import file, peers
from bench.bare import Socket
from bench.clock import one_processor, timed
from bench.ours import pair
from bench.row import OURS, Figure, Row, times
from bench.tasks import BARE_LOCK
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer

PEER = "python-redis-lock"
FLOOR = f"floor: {BARE_LOCK}"


def run() -> list[Row]:
    with one_processor(), RedisServer() as server:
        in_redis = measure(server)
    with one_processor():
        in_file = file.measure()
    return [
        _row("pair", "acquire and release in Redis (bare socket = 1)", 2.6, in_redis),
        _row("pair-sqlite", "acquire and release in a SQLite file (bare upsert and delete = 1)", 2, in_file),
    ]


def _row(name: str, what: str, goal: float, measured: dict[str, list[float]]) -> Row:
    floor = next(iter(measured))
    (ours,) = (who for who in measured if who.startswith(OURS))
    absent = peers.missing(PEER) if name == "pair" else {}
    notes = {f"{who}, us": Figure.of(rounds).median for who, rounds in measured.items()}
    figures = {who: figure for who, figure in times(measured, floor).items() if who in (ours, *peers.LOCKS)}
    return Row(name, what, "times", goal, figures, ours=ours, missing=absent, notes=notes)


def measure(server: RedisServer, options: str = "") -> dict[str, list[float]]:
    """Return the microseconds of each, round by round, the floor first. `options` are added to our URL."""
    store = open_store(server.url + options)
    client = redis.Redis.from_url(server.url)
    bare = Socket(server.port)

    def floor() -> None:
        bare.acquire("floor")
        bare.release("floor")

    def cookbook() -> None:
        client.set("cookbook", "1", nx=True, ex=30)
        client.delete("cookbook")

    def by(lock: peers.Lock, name: str) -> None:
        with lock(name):
            pass

    absent = peers.missing(PEER)
    locks = {
        name: partial(by, make(server.url), name) for name, make in peers.LOCKS.items() if name not in absent
    }
    return timed({FLOOR: floor, OURS: partial(pair, store), "redis-py's SET NX + DEL": cookbook, **locks})
