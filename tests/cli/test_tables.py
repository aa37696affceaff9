"""`locks create-tables`, where workers may not make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Desk
from tests.store.conftest import Database, database, kind

__all__ = ["database", "kind"]


def ours(database: Database) -> str:
    return f"table_schema = {database.schema} AND table_name LIKE 'exclusive2%'"


@pytest.mark.proves("databases, tables")
def test_create_tables_makes_them_and_tells_which_rights_others_need(
    make_desk: Callable[..., Desk], database: Database
) -> None:
    desk = make_desk(exclusive_store=database.url)
    for _ in range(2):  # again does no harm
        made = desk.run("create-tables")
        assert (made.exit_code, made.stdout) == (0, f"the tables are in {desk.store.url}\n")
        assert made.stderr.count("GRANT SELECT, INSERT, UPDATE, DELETE ON exclusive2_") == 7
    assert database.ask(f"SELECT count(*) FROM information_schema.tables WHERE {ours(database)}") == [(7,)]
    desk.store.close()


@pytest.mark.proves("databases, tables")
def test_printed_statements_make_the_same_tables(make_desk: Callable[..., Desk], database: Database) -> None:
    columns = f"""SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
        WHERE {ours(database)} ORDER BY 1, 2"""
    desk = make_desk(exclusive_store=database.url)
    printed = desk.run("create-tables", "--print").stdout
    assert database.ask(columns) == []  # it only prints
    database.ask(printed)
    by_hand = database.ask(columns)
    assert len(by_hand) > 20
    database.empty()
    desk.run("create-tables")
    assert database.ask(columns) == by_hand
    desk.store.close()


@pytest.mark.proves("databases, tables")
def test_printing_needs_no_database(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(exclusive_store="postgresql://127.0.0.1:1/nowhere")
    assert desk.run("create-tables", "--print").stdout.startswith("CREATE TABLE IF NOT EXISTS exclusive2_")
    refused = desk.run("create-tables")
    assert refused.exit_code == 3
    assert "check that it runs and that its URL is right" in refused.stderr


@pytest.mark.proves("databases, tables")
def test_other_stores_need_none(make_desk: Callable[..., Desk]) -> None:
    refused = make_desk().run("create-tables")
    assert refused.exit_code == 1
    assert "is no database server: it makes what it needs" in refused.stderr
