"""What every test may use: servers of its own, and an honest last line about what was left out."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer
from tests.rabbit import RabbitServer
from tests.servers import NoServer, RedisServer

hypothesis.settings.register_profile("house", deadline=None)  # a busy machine is no bug
hypothesis.settings.load_profile("house")
Server = TypeVar("Server")
TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server that the tests of one process share: for what does not harm it. See `redis_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(RedisServer))


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of that server, up and empty."""
    redis_server.refresh()
    return redis_server.url


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own, to be stopped, killed or paused: `start_redis(appendonly=True)`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(_or_leave_out(lambda: RedisServer(**options)))


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[MemcachedServer]:
    """The memcached that the tests of one process share: for what does not harm it. See `memcached_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(MemcachedServer))


@pytest.fixture
def memcached_url(memcached_server: MemcachedServer) -> str:
    """The URL of that server, up and empty."""
    memcached_server.refresh()
    return memcached_server.url


@pytest.fixture
def start_memcached() -> Iterator[Callable[..., MemcachedServer]]:
    """Starts servers of the test's own: `start_memcached("-M", "-m", "1")`."""
    with ExitStack() as servers:
        yield lambda *options: servers.enter_context(_or_leave_out(lambda: MemcachedServer(*options)))


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The RabbitMQ that the tests of one process share. See `rabbit_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(RabbitServer))


@pytest.fixture
def rabbit_url(rabbit_server: RabbitServer) -> Iterator[str]:
    """The URL of an empty virtual host of that server, which is up."""
    url = rabbit_server.new_url()
    yield url
    rabbit_server.drop(url)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL that the tests of one process share: for what does not harm it. See `postgres_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(PostgresServer))


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of that server, up and empty."""
    postgres_server.refresh()
    return postgres_server.url


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler before that server, in transaction mode."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(lambda: PgBouncer(postgres_server)))


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Starts servers of the test's own: `start_postgres(max_connections="5")`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(_or_leave_out(lambda: PostgresServer(**options)))


@pytest.fixture(scope="session")
def maria_server() -> Iterator[MariaServer]:
    """The MariaDB that the tests of one process share: for what does not harm it. See `maria_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(_or_leave_out(MariaServer))


@pytest.fixture
def maria_url(maria_server: MariaServer) -> str:
    """The URL of that server, up and empty."""
    maria_server.refresh()
    return maria_server.url


@pytest.fixture
def start_maria() -> Iterator[Callable[..., MariaServer]]:
    """Starts servers of the test's own: `start_maria(max_connections="5")`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(_or_leave_out(lambda: MariaServer(**options)))


def _or_leave_out(start: Callable[[], Server]) -> Server:
    try:
        return start()
    except NoServer as why:
        pytest.skip(str(why))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Our tests wait for servers and workers more than they compute."""
    return max(6, os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Call slow what needs a PostgreSQL or a MariaDB.

    With several processes, run a part of each folder at any time: some tests compute while others wait.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if any(f"{name}_server" in fixtures or name in item.name for name in ("postgres", "maria")):
            item.add_marker("slow")
    if not hasattr(config, "workerinput"):
        return
    folders: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        folders[item.path.relative_to(TESTS).parts[0]].append(item)
    moments = {
        item: number / len(folder) for folder in folders.values() for number, item in enumerate(folder)
    }
    items.sort(key=moments.__getitem__)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"left out: {tests}: {reason}", yellow=True)
