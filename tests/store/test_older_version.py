"""A worker says at its start that locks of another version are in its store, which it does not see."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store, open_store
from tests.servers import RedisServer

WARNING = "it holds locks of an older version of celery-exclusive"
LONG = 60 * SECOND


def older(store: Store) -> list[str]:
    return [warning for warning in store.check() if WARNING in warning]


def lease(store: Store, ttl: int = LONG) -> None:
    store.apply("x:k", Acquire("a/1", "t", ttl))


def line(store: Store) -> None:
    lease(store)
    store.apply("x:k", Acquire("b/1", "t", LONG, message=b"message"))


def beat(store: Store) -> None:
    store.keep_namespace("redis://broker", LONG)


@pytest.mark.promise(
    "Locks of an older version in the store are reported when a worker starts: which expire by themselves "
    "and which do not. On Redis so are locks of a newer version, as after a rollback",
    name="older version",
    broke="the newer names not looked at",
)
@pytest.mark.parametrize(
    ("version", "words"),
    [(b"cx1:", "Its locks expire by themselves, its lines do not"), (b"cx3:", "of a newer version")],
)
@pytest.mark.parametrize("leave", [lease, line, beat])
def test_locks_of_another_version_on_redis_are_reported(
    start_redis: Callable[..., RedisServer], leave: Callable[[Store], None], version: bytes, words: str
) -> None:
    server = start_redis()
    store = open_store(server.url)
    leave(store)
    before = store.check()
    with server.client() as client:
        for name in list(client.scan_iter("cx2:*")):
            client.rename(name, name.replace(b"cx2:", version))
    (warning,) = {*store.check()} - {*before}
    assert f"store {server.url}: " in warning
    assert f"({version.decode()}{{0}}:*)" in warning
    assert words in warning
    store.close()


@pytest.mark.proves("older version")
def test_locks_of_an_older_version_in_another_namespace_are_not_reported(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    store = open_store(server.url)
    with server.client() as client:
        client.set("other1:{0}:broker", "redis://broker")
    assert older(store) == []
    store.close()


@pytest.mark.proves("older version")
@pytest.mark.parametrize("leave", [lease, line])
def test_locks_of_an_older_version_in_a_sqlite_file_are_reported(
    tmp_path: Path, leave: Callable[[Store], None]
) -> None:
    path = tmp_path / "locks.db"
    store = open_store(f"sqlite:///{path}")
    leave(store)
    make_older(path)
    (warning,) = older(store)
    assert "(tables exclusive1_*)" in warning
    assert "Its locks expire by themselves, its lines do not" in warning
    store.close()


@pytest.mark.proves("older version")
def test_older_tables_without_locks_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store, other = (open_store(f"sqlite:///{path}", prefix=prefix) for prefix in ("cx", "other"))
    lease(store, ttl=1)
    lease(other)
    before = store.check()
    make_older(path)
    assert store.check() == before
    store.close()
    other.close()


def make_older(path: Path) -> None:
    """Give the rows of the file to the first version, whose table had these columns too."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE exclusive1_lock AS SELECT * FROM exclusive2_lock")
