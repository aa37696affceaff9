"""What only PostgreSQL has: poolers that give each transaction another connection, and its own settings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from celery_exclusive.core.operations import Applied, Granted, Remove
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql.postgres import PostgresStore
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresDatabase, PostgresServer
from tests.store.operations import give, take


def test_a_url_as_heroku_spells_it_is_the_same_store(postgres_url: str) -> None:
    assert postgres_url.startswith("postgresql://")
    urls = (postgres_url, postgres_url.replace("postgresql", "postgres", 1))
    with closing(open_store(urls[0])) as one, closing(open_store(urls[1])) as other:
        assert one.epoch() == other.epoch()


@pytest.mark.usefixtures("postgres_url")
def test_through_a_pooler_nothing_is_kept_in_a_session(pgbouncer: PgBouncer) -> None:
    pooled = PostgresStore(pgbouncer.url)
    pooled.epoch()
    settings = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"

    def work(name: str) -> None:
        for _ in range(30):
            assert isinstance(pooled.apply(name, take(name)).answer, Granted)
            pooled.apply(name, take(f"{name} waits"))
            pooled.apply(name, Remove(f"{name} waits"))
            assert pooled.apply(name, give(name)).answer == Applied(True)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, "abcdef"))
    for session in list(pooled._idle):
        session.cursor.execute(settings)
        assert session.cursor.fetchone() == ("0", "0")
        session.cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert session.cursor.fetchone() == (0,)
    pooled.close()


def test_check_warns_of_each_setting_with_which_a_crash_loses_locks(
    start_postgres: Callable[..., PostgresServer],
) -> None:
    def check() -> list[str]:
        with closing(server.open_store()) as store:
            return store.check()

    def lossy(name: str) -> str:
        return f"{name} is off, so a crash may lose locks and waiting tasks; set it to on"

    server = start_postgres(fsync="on")
    assert check() == []
    server.ask("ALTER ROLE tests SET synchronous_commit = off")
    (warning,) = check()
    assert warning == f"store {server.url}: its {lossy('synchronous_commit')}"
    server.ask("ALTER ROLE tests SET synchronous_commit = local")
    assert check() == []
    server = start_postgres(fsync="off", synchronous_commit="off")
    fsync, commit = check()
    assert lossy("fsync") in fsync
    assert lossy("synchronous_commit") in commit


@pytest.mark.usefixtures("long_waits", "postgres_url")
def test_a_call_whose_connection_the_server_ends_is_made_again(postgres_database: PostgresDatabase) -> None:
    with closing(postgres_database.open_store()) as store, ThreadPoolExecutor(1) as pool:
        store.epoch()
        with postgres_database.stranger() as stranger:
            stranger.execute("BEGIN")
            stranger.execute("SELECT FROM exclusive2_namespace FOR UPDATE")
            granting = pool.submit(store.apply, "key", take("a"))
            while not postgres_database.blocked():
                pass
            stranger.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            )
            stranger.execute("COMMIT")
        assert isinstance(granting.result().answer, Granted)
