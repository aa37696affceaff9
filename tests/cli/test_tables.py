"""`locks create-tables`, where workers may not make them."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Desk
from tests.postgres import PostgresServer


def test_create_tables_makes_them_and_tells_which_rights_others_need(
    make_desk: Callable[..., Desk], postgres_url: str, postgres_server: PostgresServer
) -> None:
    desk = make_desk(exclusive_store=postgres_url)
    for _ in range(2):  # again does no harm
        made = desk.run("create-tables")
        assert (made.exit_code, made.stdout) == (0, f"the tables are in {desk.store.url}\n")
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON exclusive2_namespace, exclusive2_lock," in made.stderr
    with postgres_server.connect() as connection:
        count = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'exclusive2_%%'"
        assert connection.execute(count).fetchone() == (5,)
    desk.store.close()


def test_what_it_prints_makes_the_same(
    make_desk: Callable[..., Desk], postgres_url: str, postgres_server: PostgresServer
) -> None:
    columns = """SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
        WHERE table_schema = 'public' ORDER BY 1, 2"""
    desk = make_desk(exclusive_store=postgres_url)
    printed = desk.run("create-tables", "--print").stdout
    with postgres_server.connect() as connection:
        assert connection.execute(columns).fetchall() == []  # it only prints
        connection.execute(printed)  # type: ignore[call-overload]
        by_hand = connection.execute(columns).fetchall()
        assert len(by_hand) > 20
        postgres_server.refresh()
        desk.run("create-tables")
        assert connection.execute(columns).fetchall() == by_hand
    desk.store.close()


def test_printing_needs_no_database(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(exclusive_store="postgresql://127.0.0.1:1/nowhere")
    assert desk.run("create-tables", "--print").stdout.startswith("CREATE TABLE IF NOT EXISTS exclusive2_")
    refused = desk.run("create-tables")
    assert refused.exit_code == 1
    assert "check that it runs and that its URL is right" in refused.stderr


def test_other_stores_need_none(make_desk: Callable[..., Desk]) -> None:
    refused = make_desk().run("create-tables")
    assert refused.exit_code == 1
    assert "is no database server: it makes what it needs" in refused.stderr
