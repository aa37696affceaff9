"""A line that others have emptied, or cut: the key goes on, and what is left of the line with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import Applied, ForceRelease, Granted, Parked, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer
from tests.store.conftest import Database
from tests.store.operations import give, take

pytestmark = pytest.mark.promise(
    "A line that was emptied by hand, or evicted, is counted anew on each store; a message without a place "
    "gets one, a place without a message is reported and leaves",
    name="emptied line",
    broke="red before: later calls refused with a traceback",
)

START = 1_800_000_000 * SECOND
STORES = ("redis", "sqlite", "postgres", "maria")
ALL = "DELETE FROM exclusive2_line"
FEW = f"{ALL} WHERE seq < (SELECT due FROM exclusive2_lock)"


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Callable[[], object]]:
    """A store, and what empties the line of its only key."""
    name = request.param
    if name == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        url: str = request.getfixturevalue("redis_url")

        def empty() -> None:
            with server.client() as redis:
                redis.delete("cx2:{0}:q:k", "cx2:{0}:m:k", "cx2:{0}:o:k")

        return open_store(url), empty
    if name == "sqlite":
        path = tmp_path / "locks.db"

        def delete() -> None:
            with closing(sqlite3.connect(path)) as file, file:
                assert file.execute(ALL).rowcount

        return open_store(f"sqlite:///{path}"), delete
    locks: str = request.getfixturevalue(f"{name}_url")
    database: Database = request.getfixturevalue(f"{name}_database")
    return open_store(locks), lambda: database.ask(ALL)


def fill(store: Any, waiting: int) -> None:
    assert isinstance(store.apply("k", take("holder")).answer, Granted)
    for number in range(waiting):
        assert isinstance(store.apply("k", take(f"{number}")).answer, Parked)


@pytest.mark.parametrize("waiting", [3, 30])
def test_the_next_call_after_the_holder_s_end_gets_the_key(bench: Any, waiting: int) -> None:
    store, empty = bench
    fill(store, waiting)
    empty()
    assert store.apply("k", give("holder")).answer == Applied(True)
    assert isinstance(store.apply("k", take("next")).answer, Granted)
    assert store.inspect("k").waiting == 0
    assert isinstance(store.apply("k", take("other")).answer, Parked)
    assert [wake.id for wake in store.apply("k", give("next")).wake] == ["other"]
    store.close()


def test_a_sweep_counts_the_line_anew(bench: Any) -> None:
    store, empty = bench
    now = START
    store.clock = lambda: now
    fill(store, 30)
    empty()
    now += 700 * SECOND
    assert not store.reap().unreadable
    assert store.inspect("k").all_waiting == 0
    assert isinstance(store.apply("k", take("next")).answer, Granted)
    store.close()


def test_an_operator_can_release_the_holder(bench: Any) -> None:
    store, empty = bench
    fill(store, 3)
    empty()
    assert store.apply("k", ForceRelease("holder")).answer == Applied(True)
    assert store.inspect("k").state == "free"
    store.close()


def test_a_task_whose_entry_is_gone_may_end_all_the_same(bench: Any) -> None:
    store, empty = bench
    fill(store, 1)
    empty()
    assert store.apply("k", Release("0", "token of 0")).answer == Applied(False)
    assert isinstance(store.apply("k", take("holder")).answer, Granted), "its own"
    store.close()


def test_messages_whose_places_were_lost_are_put_into_the_line_again(
    redis_server: RedisServer, redis_url: str
) -> None:
    store: Any = open_store(redis_url)
    now = START
    store.clock = lambda: now
    fill(store, 3)
    with redis_server.client() as redis:  # as an evicting server does
        redis.delete("cx2:{0}:q:k")
    now += 700 * SECOND
    (wake,) = store.reap().wake
    assert wake.message == b"message"
    assert store.inspect("k").waiting == 3
    store.close()


def test_an_entry_whose_message_was_lost_is_reported_and_not_in_the_way(
    redis_server: RedisServer, redis_url: str
) -> None:
    store: Any = open_store(redis_url)
    fill(store, 2)
    with redis_server.client() as redis:
        redis.hdel("cx2:{0}:m:k", "0")
    (wake,) = store.apply("k", give("holder")).wake
    assert (wake.id, wake.message) == ("0", b"")
    store.close()
