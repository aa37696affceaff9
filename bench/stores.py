"""What a lock costs in each store: `python -m bench.stores` writes the figures of docs/which-store.md."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import cache, database, file, pair
from bench.clock import medians, one_processor
from bench.ours import renewals
from celery_exclusive.stores.base import Store, open_store
from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.postgres import PostgresServer
from tests.servers import RedisServer

PAGE = Path(__file__).parents[1] / "docs" / "which-store.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
HEAD = "| store | acquire + release | times the floor | 1,000 leases renewed |\n|---|---|---|---|\n"


def main() -> None:
    machine = f"{platform.machine()}, Python {platform.python_version()}, servers on the same machine"
    note = f"(`python -m bench.stores`; {machine}, PostgreSQL and MariaDB on the same processor.)"
    figures = f"{HEAD}{''.join(rows())}\n{note}\n"
    page = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + figures + END, page, flags=re.DOTALL))
    print(figures)


def rows() -> Iterator[str]:
    with RedisServer() as redis:
        yield row("Redis", pair.measure(redis), open_store(redis.url))
    with TemporaryDirectory() as folder:
        yield row("SQLite file", file.measure(), open_store(f"sqlite:///{folder}/locks.db"))
    with one_processor(), PostgresServer() as postgres:
        yield row("PostgreSQL", database.in_postgres(postgres), postgres.open_store())
    with one_processor(), MariaServer() as maria:
        yield row("MariaDB", database.in_mariadb(maria), maria.open_store())
    with MemcachedServer() as memcached:
        yield row("memcached", cache.measure(memcached), open_store(memcached.url))


def row(name: str, times: dict[str, float], store: Store) -> str:
    """A row of the table; the first of the times is the floor."""
    floor = next(iter(times.values()))
    ours = next(time for contender, time in times.items() if contender.startswith("celery-exclusive"))
    (renewed,) = medians({"": renewals(store, 1000)}, calls=5).values()
    return f"| {name} | {ours:.0f} us | {ours / floor:.1f} | {renewed / 1000:.1f} ms |\n"


if __name__ == "__main__":
    main()
