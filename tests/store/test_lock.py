"""lock() between processes, on every store that processes can share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from typing_extensions import Self

from celery_exclusive import StoreUnavailable, install
from celery_exclusive import lock as lock_
from celery_exclusive.stores.base import Store
from tests.leases import is_lost
from tests.servers import RedisServer
from tests.worker.journal import Journal, eventually

pytestmark = pytest.mark.proves("databases, threads and forks")

ROOT = Path(__file__).parents[2]
Lock = Callable[..., lock_]


class Process:
    """One that runs a scene of `tests.store.lock_process`; gone at the end of the test."""

    def __init__(self, url: str, scene: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.store.lock_process", url, scene, *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def hear(self) -> str:
        """The next line that it tells."""
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()
        return line

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[str, str]:
        """Let it end, and return the rest of what it said, and its log."""
        told, log = self.process.communicate("\n", timeout=300)
        assert self.process.returncode == 0, log
        return told, log


STORES = ["redis", "sqlite", "postgres", "maria"]


@pytest.fixture(params=["redis", "sqlite", *(pytest.param(it, marks=pytest.mark.large) for it in STORES[2:])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "sqlite":
        return str(request.getfixturevalue(f"{request.param}_url"))
    return f"sqlite:///{tmp_path}/locks.sqlite"


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., Process]]:
    """Starts processes on this test's store: `start("hold", 5)`."""
    with ExitStack() as processes:
        yield lambda *scene: processes.enter_context(Process(url, *scene))


@pytest.fixture
def make_lock() -> Iterator[Callable[[str], Lock]]:
    """Makes a `lock` on the store of this URL."""
    stores: list[Store] = []

    def make(url: str) -> Lock:
        app: Any = install(Celery("locks", broker="memory://", set_as_current=False))
        app.conf.update(exclusive_store=url)
        stores.append(app._celery_exclusive.store)
        return lambda text="k", **options: lock_(text, app=app, **options)

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def lock(make_lock: Callable[[str], Lock], url: str) -> Lock:
    return make_lock(url)


@pytest.mark.promise(
    "A `lock()` is renewed beyond its ttl; the lock of a killed holder is free after it",
    broke="no renewal",
)
def test_a_lock_is_held_for_longer_than_its_ttl_and_a_killed_holders_only_for_that(
    start: Callable[..., Process], lock: Lock
) -> None:
    holder = start("hold", 2)
    _, fence = holder.hear().split()
    assert not lock(wait=6.5).acquire()
    holder.process.kill()
    with lock(wait=60) as lease:
        assert lease.fence > int(fence)


@pytest.mark.promise(
    "A paused holder of a `lock()` learns of its loss, and takes nothing from the next",
    broke="loss not reported",
)
def test_a_paused_holder_gets_lease_lost_and_takes_nothing_from_the_next(
    start: Callable[..., Process], lock: Lock
) -> None:
    holder = start("hold", 1)
    holder.hear()
    holder.process.send_signal(signal.SIGSTOP)
    with lock(wait=60) as lease:
        holder.process.send_signal(signal.SIGCONT)
        told, log = holder.end()
        assert told.split() == ["lost", "released"]
        assert "lost its lease on lock x=k before it released it" in log
        lease.check()


@pytest.mark.promise("Processes never overlap under a `lock()`", figure="3 processes, 120 holds")
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_processes_hold_it_one_at_a_time(start: Callable[..., Process], url: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for process in [start("contend", journal.path) for _ in range(3)]:
        process.end()
    assert len(journal.events("start")) == 120
    assert journal.most_open() == 1
    fences = [event["fence"] for event in journal.events("start")]
    assert fences == sorted(set(fences))


@pytest.mark.promise("A forked child owns no `lock()` of its parent", broke="four breaks")
def test_a_forked_child_has_nothing_of_its_parents_and_may_have_its_own(
    start: Callable[..., Process],
) -> None:
    process = start("fork", 1)
    told = [process.hear(), process.hear()]
    process.go_on()
    told += process.end()[0].splitlines()
    assert told == [
        "child: lock('k').release(): this object does not hold the lock in this process",
        f"child: held by lock:{os.uname().nodename}:{process.process.pid}",
        "parent: still held",
        "child: held it itself",
        "parent: child ended with 0",
    ]
    assert start("fork_in_body", 1).end()[0].split("\n") == ["child: left", "parent: still held", ""]


@pytest.mark.promise(
    "An interruption at any moment leaves no `lock()` held for good",
    figure=(
        "200 per store. Not counted: a signal between acquiring and the block, or between the block and "
        "its release (about 3 % of the signals on SQLite)"
    ),
)
def test_an_interruption_at_any_moment_leaves_nothing_locked_for_good(start: Callable[..., Process]) -> None:
    told, log = start("be_interrupted", 200).end()
    figures = re.search(r"raised (\d+) caught (\d+) left (\d+) under way (\d+)", told)
    assert figures
    raised, caught, left, under_way = map(int, figures.groups())
    assert caught >= 0.95 * raised > 50  # Python itself swallows what is raised into a finalizer
    assert not left, f"{left} ended only by their ttl:\n{told}\n{log}"
    assert under_way <= 10


# The store is away --------------------------------------------------------------------------------------


@pytest.mark.promise(
    "Without a store `lock()` locks nothing; an outage within its ttl costs the holder nothing",
    name="lock and store outage",
    broke="heartbeat's confirmation not noted",
)
def test_without_a_store_nothing_is_locked(make_lock: Callable[[str], Lock]) -> None:
    lock = make_lock("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        lock().acquire()
    with pytest.raises(StoreUnavailable), lock():
        raise AssertionError("held")


@pytest.mark.proves("lock and store outage")
def test_a_store_that_goes_away_and_comes_back_costs_the_holder_nothing_within_its_ttl(
    start_redis: Callable[..., RedisServer],
    make_lock: Callable[[str], Lock],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_redis(appendonly=True, appendfsync="always")
    lock = make_lock(server.url)
    with lock(ttl=60) as lease:
        server.kill()
        lease.check()  # not confirmed, and still certain
        server.restart()
        lease.check()
    assert not lock().locked()
    with lock(ttl=3) as lease:
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(lock(wait=3.5).acquire).result()
        server.kill()
        lease.check()  # the heartbeat has confirmed it since it was granted
        eventually(
            lambda: "the renewal of the leases of lock() failed" in caplog.text, "the heartbeat's complaint"
        )
        eventually(lambda: is_lost(lease), "the ttl to pass")
    assert re.search(r"lock:\S+ could not release lock x=k: its lease expires after its ttl", caplog.text)
    server.restart()
    with lock(wait=60):
        pass
