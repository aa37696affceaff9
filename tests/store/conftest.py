"""The servers whose stores are SQL, each in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from celery_exclusive.stores.sql import (
    mysql_connection,
    mysql_statements,
    postgres_connection,
    postgres_statements,
    server,
)
from celery_exclusive.stores.sql.server import ServerStore
from tests.maria import MariaDatabase, MariaServer
from tests.postgres import PostgresDatabase, PostgresServer

Database = PostgresDatabase | MariaDatabase
IMPATIENT = (server, mysql_connection, postgres_connection)
"""The modules that have the limit of a call."""
StartDatabase = Callable[..., PostgresServer | MariaServer]


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what a class of the kit does not name as `quick`."""
    for item in items:
        quick = isinstance(item, pytest.Function) and getattr(item.cls, "quick", None)
        if quick and item.function not in quick:
            item.add_marker("large")


@pytest.fixture(params=["postgres", "maria"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def database(request: pytest.FixtureRequest, kind: str) -> Database:
    """The database of this process, which is empty."""
    database: Database = request.getfixturevalue(f"{kind}_database")
    database.empty()
    return database


@pytest.fixture
def start_database(request: pytest.FixtureRequest, kind: str) -> StartDatabase:
    start: StartDatabase = request.getfixturevalue(f"start_{kind}")
    return start


@pytest.fixture
def store(database: Database) -> Iterator[ServerStore]:
    opened = database.open_store()
    yield opened
    opened.close()


@pytest.fixture
def other(database: Database) -> Iterator[ServerStore]:
    """Another process, as far as the server can tell."""
    opened = database.open_store()
    yield opened
    opened.close()


@pytest.fixture(autouse=True, scope="package")
def patience() -> Iterator[None]:
    """Wait for the databases of the run as long as ten processes take that make tables at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in IMPATIENT:
            patch.setattr(module, "PATIENCE", 30)
        yield


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for locks of others for longer than a busy machine takes to see that they wait."""
    for module, name in ((mysql_statements, "SESSION"), (mysql_statements, "BEGIN")):
        monkeypatch.setattr(module, name, re.sub(r"= [23]\b", "= 60", getattr(module, name)))
    monkeypatch.setattr(postgres_statements, "BEGIN", re.sub("'[235]s'", "'60s'", postgres_statements.BEGIN))
    for module in IMPATIENT:
        monkeypatch.setattr(module, "PATIENCE", 60)
