"""The servers whose stores are SQL, each in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_exclusive.stores.sql.server import ServerStore
from tests.maria import MariaServer
from tests.postgres import PostgresServer

Database = PostgresServer | MariaServer
StartDatabase = Callable[..., Database]


@pytest.fixture(params=["postgres", "maria"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def database(request: pytest.FixtureRequest, kind: str) -> Database:
    """The server that the tests of one process share, up and empty."""
    server: Database = request.getfixturevalue(f"{kind}_server")
    server.refresh()
    return server


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
