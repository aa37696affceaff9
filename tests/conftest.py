"""What every test may use: servers of its own, and an honest last line about what was left out."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from tests.browser import Browser
from tests.cluster import RedisCluster
from tests.maria import MariaDatabase, MariaServer
from tests.memcached import MemcachedServer
from tests.nursery import read_versions_once
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresDatabase, PostgresServer
from tests.progress import Progress
from tests.rabbit import RabbitServer
from tests.redis_tls import Certificates
from tests.sentinel import SentinelServer
from tests.servers import NoServer, RedisServer
from tests.shared import shared, wait_until_ended
from tests.sqs import SqsServer

read_versions_once()
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # A shell lets its background jobs ignore Ctrl-C. What the tests start would inherit that, but no handler.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
hypothesis.settings.register_profile("house", deadline=None)  # a busy machine is no bug
hypothesis.settings.load_profile("house")
Server = TypeVar("Server")
TESTS = Path(__file__).parent
COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests that were collected, those too that `-m` or `-k` leaves out."""
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "alone")
"""The name of this process among those of the run."""


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server that the tests of one process share: for what does not harm it. See `redis_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(RedisServer))


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of that server, up and empty."""
    redis_server.refresh()
    return redis_server.url


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own, to be stopped, killed or paused: `start_redis(appendonly=True)`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(or_leave_out(lambda: RedisServer(**options)))


@pytest.fixture
def socket_file() -> Iterator[str]:
    """A path for a server's socket, which may have some 100 characters: `tmp_path` can be longer."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "socket"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of each kind, for servers with TLS and their clients."""
    return or_leave_out(lambda: Certificates(tmp_path_factory.mktemp("certificates")))


@pytest.fixture
def start_sentinel() -> Iterator[Callable[[RedisServer], SentinelServer]]:
    """Starts a Sentinel of the test's own for a primary."""
    with ExitStack() as servers:
        yield lambda primary: servers.enter_context(or_leave_out(lambda: SentinelServer(primary.port)))


@pytest.fixture(scope="session")
def redis_cluster_url(run_folder: Path) -> Iterator[str]:
    """The Redis Cluster of the run: for what does not harm it, and in a namespace of its own."""
    with ExitStack() as servers:
        port = or_leave_out(lambda: servers.enter_context(shared(RedisCluster, run_folder)))
        yield f"redis+cluster://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def six_nodes() -> Iterator[RedisCluster]:
    """The cluster that the tests of the group "redis-cluster" share, which one process runs."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(RedisCluster))


@pytest.fixture
def cluster(six_nodes: RedisCluster) -> RedisCluster:
    """That cluster, up and empty: its nodes may be killed, and its slots moved."""
    six_nodes.refresh()
    return six_nodes


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[MemcachedServer]:
    """The memcached that the tests of one process share: for what does not harm it. See `memcached_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(MemcachedServer))


@pytest.fixture
def memcached_url(memcached_server: MemcachedServer) -> str:
    """The URL of that server, up and empty."""
    memcached_server.refresh()
    return memcached_server.url


@pytest.fixture
def start_memcached() -> Iterator[Callable[..., MemcachedServer]]:
    """Starts servers of the test's own: `start_memcached("-M", "-m", "1")`."""
    with ExitStack() as servers:
        yield lambda *options: servers.enter_context(or_leave_out(lambda: MemcachedServer(*options)))


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """The RabbitMQ that the tests of one process share. See `rabbit_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(RabbitServer))


@pytest.fixture
def rabbit_url(rabbit_server: RabbitServer) -> Iterator[str]:
    """The URL of an empty virtual host of that server, which is up."""
    url = rabbit_server.new_url()
    yield url
    rabbit_server.drop(url)


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[SqsServer]:
    """The SQS server that the tests of one process share. See `sqs_url`."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(SqsServer))


@pytest.fixture
def sqs_url(sqs_server: SqsServer) -> str:
    """The URL of that server, up and empty."""
    sqs_server.refresh()
    return sqs_server.url


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the processes of a run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def postgres_database(run_folder: Path) -> Iterator[PostgresDatabase]:
    """A database of this process, in the run's PostgreSQL: for what does not harm it. See `postgres_url`."""
    with ExitStack() as servers:
        port = or_leave_out(lambda: servers.enter_context(shared(PostgresServer, run_folder)))
        yield PostgresDatabase(port, PostgresServer.name).beside(f"tests_{PROCESS}")


@pytest.fixture
def postgres_url(postgres_database: PostgresDatabase) -> str:
    """The URL of that database, which is empty."""
    postgres_database.empty()
    return postgres_database.url


@pytest.fixture(scope="session")
def pgbouncer(postgres_database: PostgresDatabase) -> Iterator[PgBouncer]:
    """A pooler of this process before that server, in transaction mode."""
    with ExitStack() as servers:
        yield servers.enter_context(or_leave_out(lambda: PgBouncer(postgres_database)))


@pytest.fixture
def start_pgbouncer(postgres_database: PostgresDatabase) -> Iterator[Callable[..., PgBouncer]]:
    """Starts poolers of the test's own before that server: `start_pgbouncer(pool_mode="statement")`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(
            or_leave_out(lambda: PgBouncer(postgres_database, **options))
        )


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Starts servers of the test's own: `start_postgres(max_connections="5")`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(or_leave_out(lambda: PostgresServer(**options)))


@pytest.fixture(scope="session")
def maria_database(run_folder: Path) -> Iterator[MariaDatabase]:
    """A database of this process, in the run's MariaDB: for what does not harm it. See `maria_url`."""
    with ExitStack() as servers:
        port = or_leave_out(lambda: servers.enter_context(shared(MariaServer, run_folder)))
        yield MariaDatabase(port, MariaServer.name).beside(f"locks_{PROCESS}")


@pytest.fixture
def maria_url(maria_database: MariaDatabase) -> str:
    """The URL of that database, which is empty."""
    maria_database.empty()
    return maria_database.url


@pytest.fixture
def start_maria() -> Iterator[Callable[..., MariaServer]]:
    """Starts servers of the test's own: `start_maria(max_connections="5")`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(or_leave_out(lambda: MariaServer(**options)))


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser of the test's own, on an empty page."""
    with or_leave_out(Browser) as browser:
        yield browser


def or_leave_out(start: Callable[[], Server]) -> Server:
    """Start a server, or leave the test out where there is none."""
    try:
        return start()
    except NoServer as why:
        pytest.skip(str(why))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Our tests wait for servers and workers more than they compute."""
    return max(14, os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among all modules and tests, which stay: neither now, nor in a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress())


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Call slow what needs a PostgreSQL or a MariaDB.

    With several processes, run a part of each folder at any time: some tests compute while others wait.
    """
    config.stash[COLLECTED] = [*items]
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if any(f"{name}_database" in fixtures or name in item.name for name in ("postgres", "maria")):
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


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing running when the run is over."""
    if not hasattr(config, "workerinput"):
        wait_until_ended(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"left out: {tests}: {reason}", yellow=True)


@pytest.fixture
def no_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `lock_outcome` have the receivers of this test alone."""
    from celery_exclusive.signals import lock_outcome

    monkeypatch.setattr(lock_outcome, "receivers", [])
