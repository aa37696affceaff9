"""The cost of a lock in each store: `make bench ROWS=stores` writes the figures of store-costs.md."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import cache, database, file, pair
from bench.clock import one_processor, timed
from bench.ours import renewals
from bench.report import replaced
from bench.row import OURS
from celery_exclusive.stores.base import Store, open_store
from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.postgres import PostgresServer
from tests.servers import RedisServer, wait_until

PAGE = Path(__file__).parents[1] / "docs/evidence/store-costs.md"
CONFIRMED = "?replicas=1"
HEAD = "| store | acquire + release | times the floor | 1,000 leases renewed |\n|---|---|---|---|\n"


def run() -> None:
    machine = f"{platform.machine()}, Python {platform.python_version()}, servers on the same machine"
    note = f"(`make bench ROWS=stores`; {machine}, and on the same processor.)"
    figures = f"{HEAD}{''.join(rows())}\n{note}\n"
    PAGE.write_text(replaced(PAGE.read_text(), "figures", figures))
    print(figures)


def rows() -> Iterator[str]:
    with one_processor():
        with RedisServer() as redis:
            yield row("Redis", pair.measure(redis), open_store(redis.url))
        with RedisServer() as redis, RedisServer(replicaof=f"127.0.0.1 {redis.port}"):
            with redis.client() as client:
                wait_until(lambda: client.wait(1, 100) == 1, "its replica", 60)
            yield row(
                f"Redis, `{CONFIRMED}`", pair.measure(redis, CONFIRMED), open_store(redis.url + CONFIRMED)
            )
        with TemporaryDirectory() as folder:
            yield row("SQLite file", file.measure(), open_store(f"sqlite:///{folder}/locks.db"))
        with PostgresServer() as postgres:
            yield row("PostgreSQL", database.in_postgres(postgres), postgres.open_store())
        with MariaServer() as maria:
            yield row("MariaDB", database.in_mariadb(maria), maria.open_store())
        with MemcachedServer() as memcached:
            yield row("memcached", cache.measure(memcached), open_store(memcached.url))


def row(name: str, measured: dict[str, list[float]], store: Store) -> str:
    """A row of the table; the first that was measured is the floor."""
    floor = median(next(iter(measured.values())))
    ours = next(median(rounds) for contender, rounds in measured.items() if contender.startswith(OURS))
    (renewed,) = timed({"": renewals(store, 1000)}, calls=40).values()
    return f"| {name} | {ours:.0f} us | {ours / floor:.1f} | {median(renewed) / 1000:.1f} ms |\n"
