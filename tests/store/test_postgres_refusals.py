"""Databases that cannot be a store: each says what it is, and what to do, in one line without secrets."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_exclusive.core.operations import Acquire, Granted
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.sql import postgres
from celery_exclusive.stores.sql.postgres import WORDS, PostgresStore
from celery_exclusive.stores.sql.tables import NAMES, TABLES, definitions
from tests.conftest import or_leave_out
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer
from tests.store.refusals import refusal

pytestmark = pytest.mark.xdist_group("postgres-refusals")  # one server for all of them
TAKE = Acquire("a", "token", 30 * SECOND)
ROLES = """CREATE ROLE clerk LOGIN; CREATE ROLE guarded LOGIN PASSWORD 'hunter2';
CREATE ROLE rogue; CREATE ROLE dba"""
PLANT = f"""GRANT ALL ON SCHEMA public TO PUBLIC; CREATE TABLE private (word TEXT);
INSERT INTO private VALUES ('secret'); GRANT SELECT ON private TO clerk; SET ROLE rogue;
CREATE TABLE loot (word TEXT); {";".join(definitions(WORDS))};
GRANT ALL ON loot, {", ".join(NAMES)} TO PUBLIC;
CREATE FUNCTION steal() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO loot SELECT word FROM private; RETURN NEW; END $$;
CREATE TRIGGER steal BEFORE INSERT ON exclusive2_namespace FOR EACH ROW EXECUTE FUNCTION steal();
RESET ROLE"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One whose users have passwords and rights."""
    with PostgresServer(fsync="on") as started:
        started.let_in(
            "host all guarded 127.0.0.1/32 scram-sha-256", "host all clerk,tests 127.0.0.1/32 trust"
        )
        with started.connect() as connection:
            connection.execute(ROLES)
        yield started


@pytest.fixture
def empty(server: PostgresServer) -> PostgresServer:
    server.empty()
    return server


@pytest.mark.promise(
    "Misuse of PostgreSQL is refused with the fix, without secrets",
    name="PostgreSQL, misuse",
    broke="any version of the tables; the password in the URL",
)
def test_a_wrong_password(server: PostgresServer) -> None:
    said = refusal(server.url_of("guarded:hunter3", server.port))
    assert "password authentication failed" in said
    assert said.endswith("; correct user and password in its URL")


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_user_that_may_not_connect(server: PostgresServer) -> None:
    assert "let this user and machine in" in refusal(server.url_of("stranger:hunter2", server.port))


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_database_that_is_not_there(server: PostgresServer) -> None:
    said = refusal(server.url_of("tests", server.port, "nowhere"))
    assert 'database "nowhere" does not exist; create it, or correct the URL' in said


@pytest.mark.proves("PostgreSQL, misuse")
def test_an_unknown_option_is_refused(server: PostgresServer) -> None:
    said = refusal(f"{server.url}?timeout=5")
    assert "invalid connection option \"timeout\"; after '?' its URL may have the options of libpq" in said


@pytest.mark.proves("PostgreSQL, misuse")
@pytest.mark.parametrize("option", ["autocommit=1", "prepare_threshold=0", "password=hunter\udcff"])
def test_an_option_that_is_the_stores_own_or_no_text(server: PostgresServer, option: str) -> None:
    assert refusal(f"{server.url}?{option}").endswith("; after '?' its URL may have the options of libpq")


@pytest.mark.promise(
    "A `search_path` of PostgreSQL without a schema, and a pooler in statement mode, are refused with the "
    "fix; MariaDB makes its tables whatever its default row format is",
    name="PostgreSQL, odd settings",
    broke='red before: "check that it runs and that its URL is right"',
)
@pytest.mark.parametrize("path", ["''", "nowhere"])
def test_a_search_path_without_a_schema(empty: PostgresServer, path: str) -> None:
    empty.ask(f"ALTER ROLE tests SET search_path = {path}")
    try:
        said = refusal(empty.url)
    finally:
        empty.ask("ALTER ROLE tests RESET search_path")
    assert said.endswith("put one into it, as by ALTER ROLE user SET search_path = public")


@pytest.mark.proves("PostgreSQL, odd settings")
def test_a_pooler_in_statement_mode(empty: PostgresServer) -> None:
    with or_leave_out(lambda: PgBouncer(empty, pool_mode="statement")) as pooler:
        said = refusal(pooler.url)
    assert "transaction blocks not allowed in statement pooling mode; set pool_mode = transaction in" in said


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_server_that_is_too_old(empty: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "OLDEST", 99_00_00)
    assert "is PostgreSQL 15, too old: it must be 99 or newer" in refusal(empty.url)


@pytest.mark.proves("PostgreSQL, misuse")
def test_tables_of_another_release(empty: PostgresServer) -> None:
    with closing(open_store(empty.url)) as store, empty.connect() as connection:
        store.epoch()
        connection.execute("UPDATE exclusive2_version SET version = 8")
    assert "tables of another release of celery-exclusive (version 8, not 7)" in refusal(empty.url)


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_user_that_may_make_no_tables(empty: PostgresServer) -> None:
    url = empty.url_of("clerk", empty.port)
    with empty.connect() as connection:
        connection.execute("GRANT USAGE ON SCHEMA public TO clerk")
    said = refusal(url)
    assert "permission denied for schema public" in said
    assert "`celery -A proj locks create-tables`" in said
    with empty.connect() as connection:  # as psql would, what --print prints
        connection.execute("".join(f"{statement};\n" for statement in PostgresStore(url).definitions()))
    assert "permission denied for table exclusive2_version" in refusal(url)
    with empty.connect() as connection:
        names = ", ".join((*TABLES, "exclusive2_version"))
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO clerk")
    with closing(open_store(url)) as store:
        assert store.check() == []
        assert isinstance(store.apply("key", TAKE).answer, Granted)
        assert list(store.scan()) == ["key"]


@pytest.mark.promise(
    "PostgreSQL's tables of a role that owns neither the schema nor the database, and is no superuser, are "
    "refused before a statement reads them, as are tables that it makes meanwhile; `?tables_of=` allows them",
    name="tables of another role",
    broke="red before: a trigger of that role read a private table with the rights of this user",
)
@pytest.mark.parametrize("user", ["clerk", "tests"])
def test_tables_that_another_role_has_planted_are_refused(empty: PostgresServer, user: str) -> None:
    empty.ask(PLANT)
    url = empty.url_of(user, empty.port)
    said = refusal(url)
    assert "has tables exclusive2_* that belong to rogue, whose triggers would run with the rights" in said
    assert "write ?tables_of=rogue into the URL; else let the owner of the database own them" in said
    assert "belong to rogue" in refusal(f"{url}?tables_of=dba")
    assert empty.ask("SELECT word FROM loot") == []
    with closing(open_store(f"{url}?tables_of=dba,rogue&connect_timeout=60")) as store:
        assert isinstance(store.apply("key", TAKE).answer, Granted)
    assert empty.ask("SELECT word FROM loot") == [("secret",)]


@pytest.mark.proves("tables of another role")
@pytest.mark.parametrize(
    ("trusted", "undone"),
    [
        ("ALTER SCHEMA public OWNER TO rogue", ""),
        ("ALTER ROLE rogue SUPERUSER", "ALTER ROLE rogue NOSUPERUSER"),
        ("GRANT rogue TO clerk", "REVOKE rogue FROM clerk"),
        (
            "ALTER DATABASE postgres OWNER TO dba; GRANT dba TO rogue",
            "ALTER DATABASE postgres OWNER TO tests; REVOKE dba FROM rogue",
        ),
    ],
)
def test_tables_of_an_owner_a_superuser_or_a_role_of_the_user_are_used(
    empty: PostgresServer, trusted: str, undone: str
) -> None:
    empty.ask(PLANT)
    empty.ask(trusted)
    try:
        with closing(open_store(empty.url_of("clerk", empty.port))) as store:
            assert store.check() == []
    finally:
        empty.ask(undone)


@pytest.mark.proves("tables of another role")
def test_a_table_that_another_role_makes_just_before_the_store_is_refused(empty: PostgresServer) -> None:
    store: Any = open_store(empty.url_of("clerk", empty.port))
    cursor = store._connect()
    empty.ask(PLANT)
    empty.ask(f"DROP TABLE {', '.join(TABLES)}")
    with pytest.raises(OptionError, match="belong to rogue"):
        store._make_tables(cursor)
    assert cursor.connection.closed


@pytest.mark.promise(
    "A user of PostgreSQL whose transactions can only read is not told that the server is a replica",
    broke="not asked which of both it is",
)
def test_a_user_whose_transactions_only_read(empty: PostgresServer) -> None:
    with empty.connect() as connection:
        connection.execute("GRANT USAGE, CREATE ON SCHEMA public TO clerk")
    url = empty.url_of("clerk", empty.port)
    with closing(open_store(url)) as store:
        store.epoch()
        empty.ask("ALTER ROLE clerk SET default_transaction_read_only = on")
        try:
            store.close()
            assert list(store.scan()) == []
            with pytest.raises(StoreUnavailable) as refused:
                store.apply("key", TAKE)
        finally:
            empty.ask("ALTER ROLE clerk RESET default_transaction_read_only")
        reason = "default_transaction_read_only is on for this user or database: set it to off"
        assert str(refused.value).endswith(f"read-only transaction; {reason}")
        assert isinstance(store.apply("key", TAKE).answer, Granted)


@pytest.mark.proves("PostgreSQL, misuse")
def test_more_clients_than_the_server_lets_in(start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres(max_connections="4", superuser_reserved_connections="0", max_wal_senders="0")
    with closing(open_store(server.url)) as store:
        others = [server.connect() for _ in range(4)]
        with pytest.raises(StoreUnavailable, match=r"too many clients already; raise its max_connections"):
            store.apply("key", TAKE)
        for other in others:
            other.close()


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_url_that_cannot_be_read_is_not_shown() -> None:
    url = "postgresql://me:hunter2@db:port/x"
    with pytest.raises(OptionError, match=r"cannot understand this postgresql:// URL") as refused:
        open_store(url)
    assert "hunter" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.proves("PostgreSQL, several hosts")
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_several_hosts_as_libpq_writes_them_are_refused_with_what_to_write(scheme: str) -> None:
    with pytest.raises(OptionError, match=r"several hosts as \?host=one:5432&host=two:5432$"):
        open_store(f"{scheme}://one:5432,two:5432/db?target_session_attrs=read-write")


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_store_is_shown_without_password_and_options() -> None:
    store = open_store("postgresql+psycopg2://me:hunter2@db:5433/x?password=hunter3&sslmode=require")
    assert store.url == "postgresql://me@db:5433/x"


@pytest.mark.proves("PostgreSQL, misuse")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://us%3Aer:hunter2@db/x", "postgresql://us%3Aer@db/x"),
        ("postgresql:///x?host=/run/postgresql", "postgresql:///x?host=/run/postgresql"),
        ("postgresql:///x?host=one:1&host=two:2&user=me", "postgresql:///x?host=one:1&host=two:2"),
    ],
)
def test_the_place_of_a_store_is_shown_as_one_would_write_it(url: str, shown: str) -> None:
    assert open_store(url).url == shown
