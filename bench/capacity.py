"""The cost of an operation for a server, from which its capacity follows: `us` of its processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any

from bench import cpu, size
from bench.carries import WAITING as WAITING_BYTES
from bench.ours import pair, renewals
from bench.row import OURS, Row
from bench.tasks import make
from celery_exclusive.core.operations import Acquire
from celery_exclusive.stores.base import Store, open_store
from tests.maria import MariaServer
from tests.postgres import PostgresServer
from tests.servers import NoServer, RedisServer, Server

PAIRS, LEASES, WAITING, CALLS = 20_000, 1_000, 10_000, 2_000
UNIQUE = f"{OURS}, unique"
MESSAGE = b"x" * 600


def run() -> list[Row]:
    notes: dict[str, float] = {}
    with RedisServer() as redis:
        _note(notes, "Redis", redis, open_store(redis.url), size.scaled(PAIRS))
        for contender in ("bare", UNIQUE, OURS):
            task = make(contender, redis.url)
            notes[f"{contender}, us of Redis to publish"] = _to_publish(redis, task)
        with redis.client() as client:
            before = client.info("memory")["used_memory"]
            _park(open_store(redis.url), size.scaled(WAITING))
            used = client.info("memory")["used_memory"] - before
        notes[WAITING_BYTES] = used / size.scaled(WAITING)
    for name, start in (("PostgreSQL", PostgresServer), ("MariaDB", MariaServer)):
        with suppress(NoServer), start() as server:
            _note(notes, name, server, server.open_store(), size.scaled(PAIRS // 4))
    return [Row("capacity", "what operations cost their server", "count", None, {}, notes=notes)]


def _note(notes: dict[str, float], name: str, server: Server, store: Store, pairs: int) -> None:
    pair(store)
    notes[f"{name}, us per pair"] = _us_of(server, partial(pair, store), pairs)
    renew = renewals(store, LEASES)
    rounds = max(1, pairs // 100)
    notes[f"{name}, us per renewed lease"] = _us_of(server, renew, rounds) / LEASES
    if isinstance(server, RedisServer):
        notes["Redis, us per pair inside its commands"] = _inside(server, partial(pair, store), pairs)
    store.close()


def _to_publish(redis: RedisServer, task: Any) -> float:
    """Return the microseconds of the server's processor, without the first call, which connects."""
    task.delay("first")
    before = cpu.of_redis(redis)
    for number in range(size.scaled(CALLS)):
        task.delay(f"{number}")
    return (cpu.of_redis(redis) - before) / size.scaled(CALLS) * 1e6


def _us_of(server: Server, call: Callable[[], object], calls: int) -> float:
    before = cpu.of_process(server.pid)
    for _ in range(calls):
        call()
    return (cpu.of_process(server.pid) - before) / calls * 1e6


def _inside(server: RedisServer, call: Callable[[], object], calls: int) -> float:
    with server.client() as client:
        client.config_resetstat()
        for _ in range(calls):
            call()
        stats: dict[str, Any] = client.info("commandstats")
    return sum(stat["usec"] for name, stat in stats.items() if "eval" in name or "fcall" in name) / calls


def _park(store: Store, count: int) -> None:
    ttl = 600_000_000
    for number in range(count + 1):
        store.apply("long", Acquire(f"task{number}/1", token_hex(8), ttl, message=MESSAGE))
