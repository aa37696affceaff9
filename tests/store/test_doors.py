"""Whatever is wrong with a store, each door says so in one line: `ls`, a task, `lock()` and a publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_exclusive import Exclusive, ExclusiveError, StoreUnavailable, Unique, install, lock
from celery_exclusive.cli.locks import locks
from celery_exclusive.stores.sql.tables import NAMES
from celery_exclusive.system.deadline import deadline
from tests.database import Database
from tests.proxy import Proxy
from tests.servers import free_port

pytestmark = pytest.mark.promise(
    "Whatever is wrong with a store, `ls`, a task, `lock()` and a publisher say so in one line that names "
    "it: no server listens or answers, no such database, folder or tables",
    broke="the error as the driver has it",
)

KEY = "repo 17"
URLS = {
    "redis": "redis_url",
    "memcached": "memcached_url",
    "postgresql": "postgres_url",
    "mysql": "maria_url",
}


def take_lock(app: Celery) -> None:
    with lock(KEY, app=app):
        pass


def list_keys(app: Celery) -> None:
    """`celery locks ls`, whose error is raised again."""
    obj = CLIContext(app=app, no_color=True, workdir=None)
    done = CliRunner().invoke(locks, ["ls"], obj=obj, prog_name="celery locks")
    assert (done.exit_code, done.stdout) == (3, "")
    assert isinstance(done.exception, SystemExit)
    raise ExclusiveError(done.stderr.removeprefix("Error: ").rstrip("\n"))


DOORS: dict[str, Callable[[Celery], object]] = {
    "ls": list_keys,
    "a task": lambda app: app.tasks["load"].apply((KEY,)).get(),
    "lock()": take_lock,
    "a publisher": lambda app: app.tasks["publish"].delay(KEY),
}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Callable[[Celery], object]:
    return DOORS[request.param]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a server that works."""
    found: str = request.getfixturevalue(URLS[request.param])
    return found


@pytest.fixture
def make_app() -> Iterator[Callable[[str], Celery]]:
    """Makes an app with locks at a URL, and with a task of each kind."""
    with ExitStack() as apps:

        def make(url: str) -> Celery:
            app = install(Celery("doors", broker="memory://", set_as_current=False))
            apps.callback(app.close)
            app.conf.update(exclusive_store=url, task_always_eager=False)

            @app.task(name="load", shared=False, exclusive=Exclusive(key="{key}", on_conflict="skip"))
            def load(key: str) -> None: ...

            @app.task(name="publish", shared=False, unique=Unique(key="{key}"))
            def publish(key: str) -> None: ...

            app.finalize()
            return app

        yield make


def elsewhere(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()


def said(door: Callable[[Celery], object], app: Celery) -> ExclusiveError:
    """The error of a door, which may wait for a second: one line that can be printed and names the store."""
    with pytest.raises(ExclusiveError) as raised, deadline(1):
        door(app)
    text = str(raised.value)
    assert text.isprintable()
    assert len(text) < 700
    assert "Traceback" not in text
    return raised.value


def test_a_port_without_a_server_is_reported(
    make_app: Callable[[str], Celery], url: str, door: Callable[[Celery], object]
) -> None:
    port = free_port()
    error = said(door, make_app(elsewhere(url, port)))
    assert f":{port}" in str(error)
    assert door is list_keys or isinstance(error, StoreUnavailable)


def test_a_server_that_does_not_answer_is_reported(
    make_app: Callable[[str], Celery], url: str, door: Callable[[Celery], object]
) -> None:
    with Proxy(urlsplit(url).port or 0) as silent:
        silent.drop(requests=True, replies=True)
        app = make_app(elsewhere(url, silent.port))
        error = said(door, app)
        app._celery_exclusive.releaser._pending.clear()  # type: ignore[attr-defined]
        assert f":{silent.port}" in str(error)
        assert door is list_keys or isinstance(error, StoreUnavailable)


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_a_missing_database_is_reported(
    make_app: Callable[[str], Celery],
    request: pytest.FixtureRequest,
    kind: str,
    door: Callable[[Celery], object],
) -> None:
    url = urlsplit(request.getfixturevalue(f"{kind}_url"))._replace(path="/nowhere").geturl()
    error = said(door, make_app(url))
    assert "nowhere" in str(error)
    assert door is list_keys or isinstance(error, StoreUnavailable)  # it may be made yet


def test_a_missing_folder_is_reported(
    make_app: Callable[[str], Celery], tmp_path: Path, door: Callable[[Celery], object]
) -> None:
    error = said(door, make_app(f"sqlite:///{tmp_path}/nowhere/locks.db"))
    assert "nowhere" in str(error)


def test_a_file_that_is_no_database_is_reported(
    make_app: Callable[[str], Celery], tmp_path: Path, door: Callable[[Celery], object]
) -> None:
    (tmp_path / "locks.db").write_text("a text, and no database" * 100)
    error = said(door, make_app(f"sqlite:///{tmp_path}/locks.db"))
    assert "locks.db" in str(error)


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_tables_with_other_columns_are_reported(
    make_app: Callable[[str], Celery],
    request: pytest.FixtureRequest,
    kind: str,
    door: Callable[[Celery], object],
) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    database: Database = request.getfixturevalue(f"{kind}_database")
    take_lock(make_app(url))
    for name in NAMES:
        database.ask(f"DROP TABLE {name}")
        database.ask(f"CREATE TABLE {name} (own INTEGER)")
    try:
        said(door, make_app(url))
    finally:
        for name in NAMES:
            database.ask(f"DROP TABLE {name}")
