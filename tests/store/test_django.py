"""What is Django's in a store: the alias, its settings, and the transactions of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connections, transaction
from django.utils import functional

from celery_exclusive.core.operations import Acquire, Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from tests.django.databases import ENGINES, configured, mysql, postgresql, sqlite
from tests.postgres import PostgresDatabase

FIRST = Acquire("a", "token", 30 * SECOND)
SECOND_ONE = Acquire("b", "token", 30 * SECOND)
MEMORY = {"ENGINE": ENGINES + "sqlite3", "NAME": ":memory:"}
MIGRATED = ["celery_exclusive.contrib.django"]

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the database during app initialization")


class Problem(Exception):
    """As that of a library of passwords, which has a class of its own."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    with configured(
        databases := {"default": sqlite(tmp_path / "app.db"), "locks": sqlite(tmp_path / "locks.db")}
    ):
        yield databases


@pytest.mark.proves("Django, misuse")
@pytest.mark.parametrize(
    "url",
    ["django://", "django://default/app", "django://me@default", "django://:default", "django://default?x=1"],
)
def test_a_url_that_is_not_an_alias_alone_is_refused(files: object, url: str) -> None:
    with pytest.raises(OptionError, match="write django://default"):
        open_store(url)


@pytest.mark.promise(
    "A wrong alias, engine or URL of `django://`, or no Django, is refused with the fix",
    name="Django, misuse",
)
def test_an_unknown_alias_is_refused_with_the_one_that_was_meant(files: object) -> None:
    with pytest.raises(
        OptionError, match=r"no alias 'lock' \(there are default, locks\).*did you mean 'locks'"
    ):
        open_store("django://lock")


@pytest.mark.proves("Django, misuse")
def test_a_database_of_another_kind_is_refused() -> None:
    with (
        configured({"default": {"ENGINE": ENGINES + "dummy"}}),
        pytest.raises(OptionError, match=r"of the kind unknown, .* ENGINE is one of .*postgresql, sqlite"),
    ):
        open_store("django://default")


@pytest.mark.proves("Django, misuse")
def test_a_backend_that_cannot_be_imported_is_refused() -> None:
    with (
        configured({"default": {"ENGINE": "nowhere.backend", "NAME": "x"}}),
        pytest.raises(OptionError, match=r"django://default: 'nowhere\.backend' isn't an available database"),
    ):
        open_store("django://default")


@pytest.mark.proves("Django, misuse")
def test_settings_without_a_database_name_are_refused() -> None:
    with configured({"default": {"ENGINE": ENGINES + "sqlite3"}}), pytest.raises(OptionError, match="NAME"):
        open_store("django://default")


@pytest.mark.proves("Django, misuse")
def test_a_process_without_django_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    with pytest.raises(OptionError, match="DJANGO_SETTINGS_MODULE"):
        open_store("django://default")


@pytest.mark.proves("Django, misuse")
def test_a_process_without_django_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(OptionError, match=r"pip install 'celery-exclusive\[django\]'"):
        open_store("django://default")


@pytest.mark.promise(
    "Transactions of the caller neither delay nor undo a lock of `django://`; in one SQLite file they do, "
    "and it says so",
    name="Django, transactions of the caller",
)
def test_a_lock_outlives_a_rollback_of_the_caller(files: object) -> None:
    store = open_store("django://locks")
    assert rolled_back(store) == [Granted, Held]


@pytest.mark.proves("Django, transactions of the caller")
def test_a_lock_in_postgres_outlives_a_rollback_of_the_caller(postgres_url: str) -> None:
    with configured({"default": postgresql(postgres_url)}):
        with connections["default"].cursor() as cursor:
            cursor.execute("CREATE TABLE thing (name text)")
        assert rolled_back(open_store("django://default"), "INSERT INTO thing VALUES ('x')") == [
            Granted,
            Held,
        ]
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM thing")
            assert cursor.fetchone() == (0,)


@pytest.mark.proves("tables of another role")
def test_an_alias_of_postgres_names_another_owner_of_the_tables(
    postgres_database: PostgresDatabase, postgres_url: str
) -> None:
    named = "django://default?tables_of=migrator"
    with configured({"default": postgresql(postgres_url)}):
        with closing(open_store("django://default")) as store:
            store.check()
        postgres_database.ask("CREATE ROLE migrator; ALTER TABLE exclusive2_lock OWNER TO migrator")
        try:
            with (
                closing(open_store("django://default")) as store,
                pytest.raises(OptionError, match=r"belong to migrator.*\?tables_of=migrator"),
            ):
                store.check()
            with closing(open_store(named)) as store:
                store.check()
        finally:
            postgres_database.ask("ALTER TABLE exclusive2_lock OWNER TO tests; DROP ROLE migrator")
    with (
        configured({"default": MEMORY}),
        pytest.raises(OptionError, match="only tables of PostgreSQL have owners"),
    ):
        open_store(named)


def rolled_back(store: Store, statement: str = "SELECT 1") -> list[type]:
    """Acquire within a transaction that is undone, and again after it."""
    with transaction.atomic():
        with connections["default"].cursor() as cursor:
            cursor.execute(statement)
        inside = store.apply("key", FIRST).answer
        transaction.set_rollback(True)
    return [type(inside), type(store.apply("key", SECOND_ONE).answer)]


@pytest.mark.proves("Django, transactions of the caller")
def test_a_caller_that_has_written_to_the_same_sqlite_file_is_told_what_is_in_the_way(tmp_path: Path) -> None:
    with configured({"default": {**sqlite(tmp_path / "app.db"), "OPTIONS": {"timeout": 0.1}}}):
        store = open_store("django://default")
        store.check()
        with transaction.atomic():
            with connections["default"].cursor() as cursor:
                cursor.execute("CREATE TABLE thing (name text)")
            with pytest.raises(
                StoreUnavailable, match=r"for 0\.1 s: a transaction of the caller .* an alias"
            ):
                store.apply("key", FIRST)
        assert isinstance(store.apply("key", FIRST).answer, Granted)


@pytest.mark.promise(
    "Locks of a Django database in memory are in memory",
    broke="memory not asked for; called by a URL that no user wrote",
)
def test_locks_of_a_sqlite_database_in_memory_are_in_memory_too() -> None:
    with configured({"default": MEMORY, "other": MEMORY}):
        store = open_store("django://default", prefix="in-memory")
        assert store.capabilities.one_process
        assert store.url == "django://default (SQLite in memory)"
        assert isinstance(store.apply("key", FIRST).answer, Granted)
        again = open_store("django://default", prefix="in-memory")
        assert isinstance(again.apply("key", SECOND_ONE).answer, Held)
        other = open_store("django://other", prefix="in-memory")
        assert isinstance(other.apply("key", SECOND_ONE).answer, Granted)


@pytest.mark.proves("Django, missing tables")
@pytest.mark.parametrize(
    ("alias", "arguments"), [("default", ""), ("locks", " celery_exclusive --database=locks")]
)
def test_tables_that_migrations_make_are_not_made_by_the_store(
    tmp_path: Path, alias: str, arguments: str
) -> None:
    with configured({"default": {}, alias: sqlite(tmp_path / "app.db")}, INSTALLED_APPS=MIGRATED):
        refuses_to_make_tables(open_store(f"django://{alias}"), f"`python manage.py migrate{arguments}`")


@pytest.mark.proves("Django, missing tables")
def test_tables_that_migrations_make_are_not_made_in_postgres(postgres_url: str) -> None:
    with configured({"default": postgresql(postgres_url)}, INSTALLED_APPS=MIGRATED):
        store: Any = open_store("django://default")
        refuses_to_make_tables(store, "`python manage.py migrate`")
        with pytest.raises(OptionError, match=r"manage\.py migrate`"):
            store.create_tables()


def refuses_to_make_tables(store: Store, command: str) -> None:
    zero = (
        "; if that makes none, since they were dropped or it ran before this was the store, run "
        "`python manage.py migrate celery_exclusive zero"
    )
    text = f"{store.url} lacks the tables for locks: run {command}{zero}"
    with pytest.raises(OptionError, match=text):
        store.check()
    with pytest.raises(StoreUnavailable, match=text):
        store.apply("key", FIRST)


@pytest.mark.proves("Django, missing tables")
def test_an_emptied_table_of_migrations_is_used_again(
    postgres_url: str, postgres_database: PostgresDatabase
) -> None:
    with configured({"default": postgresql(postgres_url)}):
        open_store("django://default").check()
    with configured({"default": postgresql(postgres_url)}, INSTALLED_APPS=MIGRATED):
        store = open_store("django://default")
        epoch = store.epoch()
        with postgres_database.connect() as connection:
            connection.execute("DELETE FROM exclusive2_namespace")
        assert store.epoch() != epoch


@pytest.mark.promise(
    "The settings of a Django alias reach the driver, each time anew",
    name="Django, settings of the alias",
    broke="`assume_role` not looked at",
)
def test_the_options_of_an_alias_reach_postgres(
    postgres_url: str, postgres_database: PostgresDatabase
) -> None:
    with postgres_database.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS keeper; CREATE ROLE keeper; CREATE SCHEMA kept")
        connection.execute("GRANT ALL ON SCHEMA kept TO keeper; GRANT keeper TO tests")
    options = {"options": "-c search_path=kept", "assume_role": "keeper", "connect_timeout": 7}
    with configured({"default": postgresql(postgres_url, **options)}):
        open_store("django://default").check()
    with postgres_database.connect() as connection:
        owners = "SELECT DISTINCT schemaname, tableowner FROM pg_tables WHERE tablename LIKE 'exclusive2%'"
        assert connection.execute(owners).fetchall() == [("kept", "keeper")]
        connection.execute("DROP SCHEMA kept CASCADE; DROP ROLE keeper")


@pytest.mark.proves("Django, settings of the alias")
@pytest.mark.parametrize(
    ("mode", "error", "says"),
    [
        ("REQUIRED", StoreUnavailable, "SSL is required but the server doesn't support it"),
        ("verify_ca", OptionError, r"ssl_mode VERIFY_CA needs the file ssl\['ca'\]"),
    ],
)
def test_an_alias_that_demands_tls_gets_no_connection_without(
    maria_url: str, mode: str, error: type[Exception], says: str
) -> None:
    with (
        configured({"default": mysql(maria_url, ssl_mode=mode)}),
        closing(open_store("django://default")) as store,
        pytest.raises(error, match=says),
    ):
        store.check()


@pytest.mark.proves("Django, settings of the alias")
def test_an_alias_that_demands_a_known_authority_alone_is_checked_for_no_name(maria_url: str) -> None:
    alias = mysql(maria_url, ssl_mode="VERIFY_CA", ssl={"ca": "/ours.pem"})
    with configured({"default": alias}), closing(open_store("django://default")) as store:
        assert store._parameters()["ssl"] == {"ca": "/ours.pem", "check_hostname": False}


@pytest.mark.proves("Django, settings of the alias")
def test_each_connection_has_the_password_of_its_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("django.core.mail.outbox", raising=False)  # as outside of a test of Django's
    with configured({"default": {**postgresql(postgres_url), "PASSWORD": "expired"}}):
        store = open_store("django://default")
        connections["default"].settings_dict["PASSWORD"] = "fresh"
        seen = []
        backend = type(connections["default"])
        given = backend.get_connection_params
        monkeypatch.setattr(
            backend,
            "get_connection_params",
            lambda self: seen.append(self.settings_dict["PASSWORD"]) or given(self),
        )
        store.check()
        assert seen == ["fresh"]


@pytest.mark.promise(
    "A connection whose parameters cannot be made now is an answer that is missing, so a run waits for it",
    name="Django, parameters that fail",
    broke="red before: MySQL raised what the maker of a password raises, PostgreSQL too; the run was lost",
)
@pytest.mark.parametrize("engine", [mysql, postgresql])
@pytest.mark.parametrize(
    "problem",
    [ConnectionResetError("the tokens' server is away"), LookupError("no token"), Problem("of AWS")],
)
def test_a_password_that_cannot_be_made_is_a_store_that_does_not_answer(
    engine: Callable[[str], dict[str, Any]], problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured({"default": engine("sql://me@127.0.0.1:1/locks")}):

        def fail(_: object) -> None:
            raise problem

        monkeypatch.setattr(type(connections["default"]), "get_connection_params", fail)
        store = open_store("django://default")
        with pytest.raises(StoreUnavailable) as unavailable:
            store.apply("key", Acquire("a", "token", 30 * SECOND))
        with pytest.raises(OptionError) as refused:
            store.check()
    assert str(unavailable.value) == str(refused.value)
    assert str(refused.value).startswith("exclusive_store: django://default: the parameters of a connection")
    assert str(refused.value).endswith(f"{type(problem).__name__}: {problem}")


@pytest.mark.proves("Django, parameters that fail")
@pytest.mark.parametrize("engine", [mysql, postgresql])
def test_a_time_limit_that_strikes_while_a_password_is_made_is_no_trouble_of_the_store(
    engine: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured({"default": engine("sql://me@127.0.0.1:1/locks")}):

        def strike(_: object) -> None:
            raise SoftTimeLimitExceeded

        monkeypatch.setattr(type(connections["default"]), "get_connection_params", strike)
        store = open_store("django://default")
        with pytest.raises(SoftTimeLimitExceeded):
            store.apply("key", Acquire("a", "token", 30 * SECOND))


def test_django_is_as_it_was_after_a_test() -> None:
    with configured({"default": {}}):
        pass
    from django.conf import settings

    assert settings._wrapped is functional.empty
