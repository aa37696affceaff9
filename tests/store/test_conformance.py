"""Every store against every promise of the kit.

Five classes drive the code of another class through another connection. `make test` runs only the tests in
`OF_A_CONNECTION` on them, and `make test-all` runs the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.memory import MemoryStore
from tests.django.databases import configured, mysql, postgresql, sqlite
from tests.kit.conformance import StoreConformance
from tests.maria import MariaDatabase
from tests.memcached import MemcachedServer
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresDatabase
from tests.servers import RedisServer
from tests.store.conftest import Database

OF_A_CONNECTION = frozenset({
    StoreConformance.test_a_held_key_is_not_granted_again,
    StoreConformance.test_a_late_finisher_leaves_the_next_holder_alone,
    StoreConformance.test_many_leases_are_renewed_at_once_and_answered_one_by_one,
    StoreConformance.test_a_parked_message_is_returned_as_it_was,
    StoreConformance.test_any_string_is_a_key,
    StoreConformance.test_losing_its_data_changes_the_epoch_of_a_store,
    StoreConformance.test_a_store_that_does_not_answer_says_so,
    StoreConformance.test_nothing_is_left_of_finished_tasks,
    StoreConformance.test_all_clients_of_a_namespace_see_the_same,
    StoreConformance.test_a_closed_client_opens_itself_again,
    StoreConformance.test_threads_count_without_a_lock_of_their_own,
    StoreConformance.test_threads_that_wait_in_line_lose_no_wake_up,
    StoreConformance.test_a_forked_child_uses_the_store_of_its_parent,
    StoreConformance.test_a_parent_sees_the_lease_that_its_forked_child_acquired,
    StoreConformance.test_a_message_that_a_dead_process_parked_is_kept,
})  # fmt: skip
"""Commits, values of each type, threads, forks, and servers that are away."""


class TestMemory(StoreConformance):
    is_shared_by_processes = False

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store("memory://", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        store = self.client()
        assert isinstance(store, MemoryStore)
        store.clear()


class TestRedis(StoreConformance):
    @pytest.fixture(autouse=True)
    def server(self, redis_server: RedisServer, redis_url: str) -> None:
        self.redis_server, self.url = redis_server, redis_url

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(self.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        with self.redis_server.client() as redis:
            redis.flushall()

    def unreachable_store(self) -> Store:
        return open_store("redis://127.0.0.1:1/0")

    def kept_for_ever(self, prefix: str) -> list[str]:
        with self.redis_server.client(decode_responses=True) as redis:
            names = [name for name in redis.scan_iter(f"{prefix}*") if redis.ttl(name) == -1]
        return [name for name in names if not name.endswith((":fence", ":epoch", ":run"))]


class TestRedisCluster(StoreConformance):
    @pytest.fixture(autouse=True)
    def server(self, redis_cluster_url: str) -> None:
        self.url = f"{redis_cluster_url}?socket_timeout=30"  # six nodes on a busy machine

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(self.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        with redis.RedisCluster.from_url(self.url.replace("+cluster", "")) as cluster:
            for name in cluster.scan_iter(f"{self.prefix}*"):
                cluster.delete(name)

    def unreachable_store(self) -> Store:
        return open_store("redis+cluster://127.0.0.1:1")

    def kept_for_ever(self, prefix: str) -> list[str]:
        with redis.RedisCluster.from_url(self.url.replace("+cluster", ""), decode_responses=True) as cluster:
            names = [name for name in cluster.scan_iter(f"{prefix}*") if cluster.ttl(name) == -1]
        return [name for name in names if not name.endswith((":fence", ":epoch", ":run"))]


@pytest.mark.proves("memcached")
class TestMemcached(StoreConformance):
    dying_leases = 1  # it counts in seconds, in which the others ask again and again

    @pytest.fixture(autouse=True)
    def server(self, memcached_server: MemcachedServer, memcached_url: str) -> None:
        self.memcached_server, self.url = memcached_server, memcached_url

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(self.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        self.memcached_server.ask(b"flush_all")

    def unreachable_store(self) -> Store:
        return open_store("memcached://127.0.0.1:1")


class TestSqlite(StoreConformance):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "locks.db"

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(f"sqlite:///{self.path}", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        for path in self.path.parent.glob("locks.db*"):
            path.unlink()

    def unreachable_store(self) -> Store:
        return open_store(f"sqlite:///{self.path.parent}/no such folder/locks.db")

    def kept_for_ever(self, prefix: str) -> list[str]:
        with closing(sqlite3.connect(self.path)) as database:
            return rows_left(lambda count: database.execute(count, (prefix.encode(),)).fetchone())


class DatabaseConformance(StoreConformance):
    """In a database of its own, which no other test empties: so its tables are made once."""

    def use_one_beside(self, database: Database) -> None:
        self.database = database.beside(f"{database.name}_kit")
        self.url = self.database.url

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store(self.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def lose_data(self) -> None:
        self.database.empty()

    def unreachable_store(self) -> Store:
        return open_store(f"{self.database.scheme}://tests@127.0.0.1:1/locks")

    def kept_for_ever(self, prefix: str) -> list[str]:
        return rows_left(lambda count: self.database.ask(count.replace("?", "%s"), prefix.encode())[0])


class TestPostgres(DatabaseConformance):
    @pytest.fixture(autouse=True)
    def server(self, postgres_database: PostgresDatabase) -> None:
        self.use_one_beside(postgres_database)


@pytest.mark.promise(
    "`django://alias` keeps what its database keeps: the kit on SQLite, PostgreSQL and MariaDB of Django",
    name="Django's databases",
)
class TestDjangoSqlite(TestSqlite):
    quick = OF_A_CONNECTION

    @pytest.fixture(autouse=True)
    def project(self, file: None) -> Iterator[None]:
        nowhere = self.path.parent / "no such folder/locks.db"
        with configured({"default": sqlite(self.path), "nowhere": sqlite(nowhere)}):
            yield

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store("django://default", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def unreachable_store(self) -> Store:
        return open_store("django://nowhere")


@pytest.mark.proves("Django's databases")
class TestDjangoPostgres(TestPostgres):
    quick = OF_A_CONNECTION

    @pytest.fixture(autouse=True)
    def project(self, server: None) -> Iterator[None]:
        nowhere = "postgresql://tests@127.0.0.1:1/postgres"
        with configured({"default": postgresql(self.url), "nowhere": postgresql(nowhere)}):
            yield

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store("django://default", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def unreachable_store(self) -> Store:
        return open_store("django://nowhere")


@pytest.mark.proves("PgBouncer")
class TestPgBouncer(TestPostgres):
    """Through a pooler that gives each transaction another connection."""

    quick = OF_A_CONNECTION

    @pytest.fixture(autouse=True)
    def pooler(self, server: None, pgbouncer: PgBouncer) -> None:
        self.url = self.database.url_of("tests", pgbouncer.port)


@pytest.mark.proves("differential")
class TestMaria(DatabaseConformance):
    @pytest.fixture(autouse=True)
    def server(self, maria_database: MariaDatabase) -> None:
        self.use_one_beside(maria_database)


@pytest.mark.proves("differential")
class TestMariaUnprepared(TestMaria):
    """As MySQL is asked."""

    quick = OF_A_CONNECTION

    @pytest.fixture(autouse=True)
    def nothing_prepared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_exclusive.stores.sql.mysql.PREPARING", ())


@pytest.mark.proves("Django's databases")
class TestDjangoMaria(TestMaria):
    quick = OF_A_CONNECTION

    @pytest.fixture(autouse=True)
    def project(self, server: None) -> Iterator[None]:
        nowhere = "mysql://tests@127.0.0.1:1/kit"
        with configured({"default": mysql(self.url), "nowhere": mysql(nowhere)}):
            yield

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        return open_store("django://default", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)

    def unreachable_store(self) -> Store:
        return open_store("django://nowhere")


def rows_left(ask: Callable[[str], Any]) -> list[str]:
    """The tables that have rows of a namespace which no reaper deletes.

    A tombstone has an end, after which the reaper takes it away: a minute too late for these tests. So
    has the row of a lock in a server that a sweep has emptied.
    """
    count = "SELECT count(*) FROM exclusive2_{} WHERE namespace = ?".format
    goes = " AND NOT (ends IS NOT NULL AND ends = 0 AND due > 0)"
    return [name for name, but in (("lock", goes), ("line", "")) if ask(count(name) + but)[0]]
