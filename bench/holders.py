"""A call beside many holders of its key, and beside one: `make bench ROWS=holders`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import size
from bench.clock import one_processor, timed
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.stores.base import Store, open_store
from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.postgres import PostgresServer
from tests.servers import RedisServer

COUNTS = (1, size.scaled(1_000), size.scaled(10_000))
LIMIT = 1_000_000
TTL = 86_400_000_000
WAYS = {"early acknowledgement": {}, "late, with its message kept": {"acks_late": True, "recovers": True}}


def run() -> None:
    for way, options in WAYS.items():
        print(f"a call of a key beside {', '.join(map(str, COUNTS))} holders, {way}:")
        with one_processor(), ExitStack() as stack:
            for name, store in stores(stack):
                print(f"  {name:<12} {'  '.join(measure(store, options))}", flush=True)


def stores(stack: ExitStack) -> Iterator[tuple[str, Store]]:
    yield "Redis", open_store(stack.enter_context(RedisServer()).url)
    folder = stack.enter_context(TemporaryDirectory())
    yield "SQLite", open_store(f"sqlite:///{Path(folder)}/locks.db")
    yield "PostgreSQL", stack.enter_context(PostgresServer()).open_store()
    yield "MariaDB", stack.enter_context(MariaServer()).open_store()
    yield "memory", open_store("memory://holders")
    yield "memcached", open_store(stack.enter_context(MemcachedServer()).url)


def measure(store: Store, options: dict[str, bool]) -> Iterator[str]:
    """Yield the time beside each number of holders, and how many times the first that is."""
    first = 0.0
    for count in COUNTS:
        key = f"beside {count}"
        for number in range(count):
            hold(store, key, f"holder {number}", options)
        (rounds,) = timed({"": partial(pair, store, key, options)}, calls=80).values()
        first = first or median(rounds)
        yield f"{median(rounds):8.0f} us ({median(rounds) / first:.2f})"


def hold(store: Store, key: str, id: str, options: dict[str, bool]) -> None:
    message = b"message" if options else None
    store.apply(key, Acquire(id, "token", TTL, LIMIT, message=message, **options))


def pair(store: Store, key: str, options: dict[str, bool]) -> None:
    hold(store, key, "task", options)
    store.apply(key, Release("task", "token"))
