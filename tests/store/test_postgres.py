"""What only PostgreSQL has: poolers that give each transaction another connection."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_exclusive.core.operations import Applied, Granted, Remove
from celery_exclusive.stores.sql.postgres import PostgresStore
from tests.pgbouncer import PgBouncer
from tests.store.operations import give, take


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
