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
from tests.servers import wait_until
from tests.store.operations import give, take


@pytest.mark.proves("unknown scheme")
def test_a_url_as_heroku_spells_it_is_the_same_store(postgres_url: str) -> None:
    assert postgres_url.startswith("postgresql://")
    urls = (postgres_url, postgres_url.replace("postgresql", "postgres", 1))
    with closing(open_store(urls[0])) as one, closing(open_store(urls[1])) as other:
        assert one.epoch() == other.epoch()


@pytest.mark.promise(
    "The PostgreSQL store is safe behind PgBouncer in transaction mode",
    name="PgBouncer",
    broke="statements that are prepared; a timeout of the session",
)
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


@pytest.mark.promise(
    "A connection to PostgreSQL that the server, or a pooler before it, has closed is replaced, whatever "
    "it said last: `idle_session_timeout`, `client_idle_timeout` and `KILL` of PgBouncer",
    name="PostgreSQL, closed connections",
    broke="red before: each raised",
)
def test_a_connection_that_the_server_ended_for_idleness_is_replaced(
    start_postgres: Callable[..., PostgresServer],
) -> None:
    server = start_postgres(idle_session_timeout="100ms")
    with closing(server.open_store()) as store:
        store.epoch()
        (session,) = store._idle
        number = server.number(session.connection)
        wait_until(lambda: number not in server.numbers(), "the end of its connection", 30)
        assert isinstance(store.apply("key", take("a")).answer, Granted)


@pytest.mark.proves("PostgreSQL, closed connections")
@pytest.mark.usefixtures("postgres_url")
@pytest.mark.parametrize("how", ["client_idle_timeout", "KILL"])
def test_a_connection_that_a_pooler_ended_is_replaced(
    how: str, start_pgbouncer: Callable[..., PgBouncer]
) -> None:
    pooler = start_pgbouncer(**({} if how == "KILL" else {how: "1"}))
    with closing(PostgresStore(pooler.url)) as store:
        assert isinstance(store.apply("key", take("a")).answer, Granted)
        if how == "KILL":
            (database,) = {row[2] for row in pooler.command("SHOW CLIENTS") if row[1] == "tests"}
            pooler.command(f"KILL {database}")
            pooler.command(f"RESUME {database}")
        wait_until(lambda: not pooler.clients(), "the end of its connection", 30)
        assert store.apply("key", give("a")).answer == Applied(True)


REFUSE_ONCE = """CREATE SEQUENCE refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('refusals') = 1 THEN RAISE 'others are in the way' USING ERRCODE = '{code}'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON exclusive2_lock FOR EACH ROW EXECUTE FUNCTION refuse()"""


@pytest.mark.promise(
    "PostgreSQL may forget what was prepared, as psycopg lets it after a ROLLBACK: what was refused for "
    "others in the way is tried again, and so are the next calls",
    broke='red before, for each code: prepared statement "grant" does not exist',
)
@pytest.mark.usefixtures("postgres_url")
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014"])
def test_a_call_that_the_server_refuses_once_is_tried_again_and_the_next_calls_work(
    code: str, postgres_database: PostgresDatabase
) -> None:
    """After a ROLLBACK psycopg lets the server forget all statements that were prepared."""
    with closing(postgres_database.open_store()) as store:
        for id in "abcd":  # until all is prepared
            store.apply("key", take(id))
        store.apply("key", give("a"))
        (session,) = store._idle
        with postgres_database.connect() as connection:
            connection.execute(REFUSE_ONCE.format(code=code))
        assert isinstance(store.apply("new", take("a")).answer, Granted)
        assert store.apply("new", give("a")).answer == Applied(True)
        assert isinstance(store.apply("other", take("a")).answer, Granted)
        assert list(store._idle) == [session]


@pytest.mark.proves("less durable line")
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


@pytest.mark.promise(
    "A call whose connection PostgreSQL ends meanwhile is made again",
    broke="its error not known as a lost connection",
)
@pytest.mark.usefixtures("long_waits", "postgres_url")
def test_a_call_whose_connection_the_server_ends_is_made_again(postgres_database: PostgresDatabase) -> None:
    with closing(postgres_database.open_store()) as store, ThreadPoolExecutor(1) as pool:
        store.epoch()
        with postgres_database.stranger() as stranger:
            stranger.execute("BEGIN")
            stranger.execute("LOCK TABLE exclusive2_lock IN EXCLUSIVE MODE")
            granting = pool.submit(store.apply, "key", take("a"))
            while not postgres_database.blocked():
                pass
            stranger.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            )
            stranger.execute("COMMIT")
        assert isinstance(granting.result().answer, Granted)
