"""The migrations of our Django app: they make what the store would, where it is, and nowhere else."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from celery_exclusive.stores.sql import sqlite_tables
from celery_exclusive.stores.sql.postgres import PostgresStore
from celery_exclusive.stores.sql.tables import NAMES, TABLES
from tests.django.databases import mysql, postgresql, sqlite
from tests.django.shop_project import Shop, with_file
from tests.maria import MariaDatabase
from tests.postgres import PostgresDatabase

COLUMNS = """SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
WHERE table_name LIKE 'exclusive2%' ORDER BY table_name, ordinal_position"""
CONNECTED = """import django; django.setup()
from django.db import connections; connections["{alias}"].ensure_connection()"""
CLERK = """import django; django.setup()
from django.contrib.auth.models import Permission, User
clerk, _ = User.objects.get_or_create(username="clerk")
"""
GIVEN = "clerk.user_permissions.set(Permission.objects.filter(codename__endswith='_lock'))\n"
HAS = "print(*sorted(clerk.get_all_permissions()))"
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'exclusive2%' ORDER BY indexname"


@pytest.mark.promise(
    "Django's migrations make the tables that the store would, in the alias of the locks and nowhere else, "
    "and unmake them; `makemigrations` finds nothing",
    name="Django, migrations",
    broke="tables made in every alias",
)
def test_the_models_have_no_changes_without_a_migration(tmp_path: Path) -> None:
    assert "No changes" in with_file(tmp_path).manage("makemigrations", "--check", "--dry-run")


@pytest.mark.promise(
    "A new SQLite file of `django://` is made for its owner alone, also if Django connects first, and with "
    "or without our app; a file with data, or for a group, keeps its mode",
    name="Django, new file",
    broke="red before: mode 0644",
)
@pytest.mark.parametrize("has_app", [True, False], ids=["with our app", "without"])
def test_the_file_of_the_locks_is_made_for_its_owner_alone(tmp_path: Path, has_app: bool) -> None:
    shop = with_file(tmp_path) if has_app else with_file(tmp_path, APPS=[])
    for alias in ("default", "locks"):
        done = shop.run("-c", CONNECTED.format(alias=alias))
        assert done.returncode == 0, done.stdout
    assert mode(tmp_path / "locks.db") == 0o600
    assert mode(tmp_path / "shop.db") == 0o666 & ~umask()


@pytest.mark.proves("Django, new file")
@pytest.mark.parametrize(("given", "content"), [(0o660, b""), (0o644, None)], ids=["of a group", "with data"])
def test_a_file_of_the_locks_that_is_there_keeps_its_mode(
    tmp_path: Path, given: int, content: bytes | None
) -> None:
    file = tmp_path / "locks.db"
    if content is None:
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE others (name)")
    else:
        file.write_bytes(content)
    file.chmod(given)
    with_file(tmp_path).manage("migrate", "--database=locks")
    assert mode(file) == given


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found & 0o666 | 0o022  # SQLite itself takes 0644


@pytest.mark.proves("Django, migrations")
def test_tables_are_made_in_the_alias_of_the_locks_and_can_be_unmade(tmp_path: Path) -> None:
    shop = with_file(tmp_path)
    shop.manage("migrate")
    assert ours(tmp_path / "shop.db") == []
    assert shop.check("--database", "locks") == ["W009"]
    shop.manage("migrate", "--database=locks")
    with closing(sqlite3.connect(":memory:")) as expected:
        for statement in sqlite_tables.statements():
            expected.execute(statement)
        assert ours(tmp_path / "locks.db") == sqlite_definitions(expected)
    assert shop.check("--database", "locks") == []
    shop.manage("migrate", "celery_exclusive", "zero", "--database=locks")
    assert ours(tmp_path / "locks.db") == []


@pytest.mark.proves("Django, migrations")
def test_tables_without_a_router_are_in_the_alias_of_the_locks_alone(tmp_path: Path) -> None:
    shop = with_file(tmp_path, DATABASE_ROUTERS=[])
    shop.manage("migrate")
    shop.manage("migrate", "--database=locks")
    assert ours(tmp_path / "shop.db") == []
    assert ours(tmp_path / "locks.db")


@pytest.mark.proves("Django, missing tables")
def test_a_migration_that_was_recorded_when_the_locks_were_elsewhere_is_told(tmp_path: Path) -> None:
    shop = with_file(tmp_path, DATABASE_ROUTERS=[])
    shop.manage("migrate")
    shop.settings["CELERY_EXCLUSIVE_STORE"] = "django://default"
    assert "W009" in shop.check("--database", "default")
    first = "migrate celery_exclusive zero --database=default"
    second = "migrate celery_exclusive --database=default"
    assert f"`manage.py {first}` and then `manage.py {second}`" in shop.said
    shop.manage(*first.split())
    shop.manage(*second.split())
    assert "W009" not in shop.check("--database", "default")


@pytest.mark.proves("Django, admin")
def test_a_permission_that_was_given_under_the_first_migrations_stays(tmp_path: Path) -> None:
    shop = with_file(tmp_path)
    shop.manage("migrate", "auth")
    shop.manage("migrate", "celery_exclusive", "0002")
    given = shop.run("-c", CLERK + GIVEN + HAS).stdout
    assert given.count("celery_exclusive.") == 3
    shop.manage("migrate", "celery_exclusive")
    assert shop.run("-c", CLERK + HAS).stdout == given


@pytest.mark.promise(
    "A `django://` store whose tables are missing names the command, also where it was recorded too early; "
    "`dumpdata` has no locks",
    name="Django, missing tables",
    broke="tables made all the same; the record not looked at; a manager that sees rows",
)
def test_the_store_says_to_migrate_and_works_after_it(tmp_path: Path) -> None:
    shop = with_file(tmp_path)
    call = (
        "-c",
        "import django; django.setup(); from orders.tasks import bill; print(bill.delay(1).outcome)",
    )
    before = shop.run(*call)
    assert before.returncode
    command = "migrate", "celery_exclusive", "--database=locks"
    assert f"lacks the tables for locks: run `python manage.py {' '.join(command)}`" in before.stdout
    shop.manage(*command)
    assert shop.run(*call).stdout.splitlines()[-1] == "published"


@pytest.mark.proves("Django, migrations")
def test_sql_can_be_printed(tmp_path: Path) -> None:
    printed = with_file(tmp_path).manage("sqlmigrate", "celery_exclusive", "0001", "--database=locks")
    assert all(f"CREATE TABLE IF NOT EXISTS {name}" in printed for name in TABLES)


@pytest.mark.proves("Django, missing tables")
def test_dumpdata_has_no_locks_and_needs_no_tables(tmp_path: Path) -> None:
    shop = with_file(tmp_path, DATABASE_ROUTERS=[])
    shop.manage("migrate")
    for command in ("dumpdata",), ("dumpdata", "--all"):
        assert "celery_exclusive.lock" not in shop.manage(*command).lower().replace(" ", "")


@pytest.mark.proves("Django, migrations")
def test_migrations_make_the_same_tables_in_postgres_as_the_store(
    postgres_url: str, postgres_database: PostgresDatabase
) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        store.create_tables()
    with postgres_database.connect() as connection:
        made = [connection.execute(ask).fetchall() for ask in (COLUMNS, INDEXES)]
    postgres_database.empty()
    shop = Shop(DATABASES={"default": postgresql(postgres_url)})
    assert shop.check("--database", "default") == ["W009"]
    shop.manage("migrate")
    with postgres_database.connect() as connection:
        assert [connection.execute(ask).fetchall() for ask in (COLUMNS, INDEXES)] == made
    assert shop.check("--database", "default") == ["W011"]
    assert "fsync is off" in shop.said
    shop.manage("migrate", "celery_exclusive", "zero")
    with postgres_database.connect() as connection:
        assert connection.execute(COLUMNS).fetchall() == []


@pytest.mark.proves("which store, Django")
def test_a_project_that_names_no_store_finds_its_database(
    postgres_url: str, postgres_database: PostgresDatabase
) -> None:
    nowhere = "amqp://nowhere"
    shop = Shop(
        DATABASES={"default": postgresql(postgres_url)},
        CELERY_EXCLUSIVE_STORE=None,
        CELERY_BROKER_URL=nowhere,
        CELERY_RESULT_BACKEND="rpc://",
    )
    shop.manage("migrate")
    assert shop.check("--database", "default") == ["W011"]
    assert "fsync is off" in shop.said
    with postgres_database.connect() as connection:
        assert connection.execute(COLUMNS).fetchall()


@pytest.mark.proves("Django, migrations")
def test_tables_in_maria_are_made_and_unmade(maria_url: str, maria_database: MariaDatabase) -> None:
    shop = Shop(DATABASES={"default": mysql(maria_url)}, MYSQLDB="pymysql")
    shop.manage("migrate", "celery_exclusive")
    assert [message for message in shop.check("--database", "default") if message != "W011"] == []
    ours = f"table_schema = {maria_database.schema} AND table_name LIKE 'exclusive2%'"
    tables = f"SELECT table_name FROM information_schema.tables WHERE {ours}"
    assert {name for (name,) in maria_database.ask(tables)} == set(NAMES)
    shop.manage("migrate", "celery_exclusive", "zero")
    assert not maria_database.ask(tables)


@pytest.mark.proves("Django, migrations")
def test_a_project_whose_locks_are_elsewhere_gets_no_tables(tmp_path: Path) -> None:
    shop = Shop(DATABASES={"default": sqlite(tmp_path / "shop.db")}, CELERY_EXCLUSIVE_STORE="redis://nowhere")
    shop.manage("migrate")
    assert ours(tmp_path / "shop.db") == []


def ours(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sqlite_definitions(connection)


def sqlite_definitions(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    ask = "SELECT name, sql FROM sqlite_master WHERE tbl_name LIKE 'exclusive2%' AND sql <> '' ORDER BY name"
    return connection.execute(ask).fetchall()
