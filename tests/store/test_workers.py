"""Records of workers are forgotten after a day, and what others have written there harms no worker."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from celery_exclusive.core.claim import NO_WORKER, worker_mark, worker_number
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.workers import WorkerRecord
from tests.servers import RedisServer

START, HOUR = 1_800_000_000 * SECOND, 3600 * SECOND
LIFE = 60 * SECOND
WORKER = WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)
TWIN = replace(WORKER, pid=2, since=WORKER.since + 1)
HOSTILE = [
    *(b"", b"\xff\xfe", b"null", b"[]", b"7", b'"x"', b"{", b"[" * 100_000, b"{}"),
    WORKER.text.replace(b"4711", b"true"),
    WORKER.text.replace(b"6699", b"0"),
    WORKER.text.replace(b"6699", b"65536"),
    WORKER.text.replace(b"1800000000", b"NaN"),
    json.dumps({"number": WORKER.number, "nodename": "of an older release"}).encode(),
]
NEWER = WORKER.text.replace(b"4711", b'2, "a field of a newer release": [1]').replace(
    b"1800000000", b"1800000001"
)
pytestmark = pytest.mark.proves("workers by number")


@pytest.fixture(params=["memory", "redis", "redis_cluster", "sqlite", "postgres", "maria"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind = request.param
    own = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite:///{tmp_path / 'locks.db'}"}
    url = own.get(kind) or request.getfixturevalue(f"{kind}_url")
    store: Any = open_store(url, prefix=f"w{token_hex(4)}")  # one Redis Cluster serves all tests
    set_clock(store, START)
    yield store
    store.close()


def set_clock(store: Any, time: int) -> None:
    for one in getattr(store, "buckets", [store]):
        one.clock = lambda: time


def test_a_worker_that_has_not_kept_the_namespace_for_a_day_is_forgotten(store: Any) -> None:
    for worker in (WORKER, TWIN):
        store.keep_namespace("broker", LIFE, worker)
    for hours in range(1, 27):
        set_clock(store, START + hours * HOUR)
        store.keep_namespace("broker", LIFE, WORKER)
        assert store.workers() == {WORKER.number: [WORKER, TWIN] if hours < 24 else [WORKER]}


@pytest.mark.proves("other projects")
def test_a_worker_that_has_ended_counts_as_living_for_a_minute(store: Any) -> None:
    store.keep_namespace("broker", LIFE, TWIN)
    for beat in range(12):  # every ten seconds
        set_clock(store, START + beat * 10 * SECOND)
        store.keep_namespace("broker", LIFE, WORKER)
        its = store.workers(LIFE)[WORKER.number]
        assert its == [WORKER, TWIN] if beat < 6 else its == [WORKER]
    assert store.workers() == {WORKER.number: [WORKER, TWIN]}


def test_records_of_other_programs_and_releases_are_left_out(
    redis_server: RedisServer, redis_url: str
) -> None:
    store = open_store(redis_url)
    with redis_server.client() as redis:
        redis.zadd("cx2:{0}:workers", dict.fromkeys([*HOSTILE, NEWER], 2**52))
    store.keep_namespace("broker", LIFE, WORKER)
    assert store.workers() == {WORKER.number: [WORKER, TWIN]}


def test_a_name_that_another_program_has_overwritten_stops_no_worker(
    redis_server: RedisServer, redis_url: str
) -> None:
    store = open_store(redis_url)
    with redis_server.client() as redis:
        redis.set("cx2:{0}:workers", "x")
    assert store.keep_namespace("broker", LIFE, WORKER) == "broker"
    assert store.workers() == {}


def test_rows_of_other_programs_and_releases_are_left_out(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'locks.db'}")
    store.keep_namespace("broker", LIFE, WORKER)
    rows = [(b"%d" % number, text) for number, text in enumerate([*HOSTILE, NEWER, "a text"])]
    with closing(sqlite3.connect(tmp_path / "locks.db")) as database, database:
        add = f"INSERT INTO exclusive2_tombstone VALUES (X'6378', X'', ?, {2**53}, ?)"
        database.executemany(add, rows)
    assert store.workers() == {WORKER.number: [WORKER, TWIN]}
    store.close()


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_a_beat_takes_no_statement_more_for_the_record_of_a_worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store: Any = open_store(request.getfixturevalue(f"{kind}_url"))
    store.keep_namespace("broker", LIFE, WORKER)
    cursor = store.transact(lambda transaction: type(transaction.cursor))
    sent, execute = list[str](), cursor.execute
    monkeypatch.setattr(cursor, "execute", lambda *it: sent.append(it[1]) or execute(*it))
    store.keep_namespace("broker", LIFE)
    without = len(sent)
    store.keep_namespace("broker", LIFE, WORKER)
    assert len(sent) == 2 * without > 0
    store.close()


def test_a_record_is_small() -> None:
    longest = replace(WORKER, nodename=f"celery@{'x' * 93}", host="y" * 64)
    assert len(longest.text) <= 300


def test_a_token_has_the_number_of_its_worker() -> None:
    for number in (1, 0x1A2B, 0xFFFF):
        assert worker_number(f"{worker_mark(number)}0123456789ab") == number
    for token in (
        f"{NO_WORKER}0123456789ab",
        "",
        "0123abcd",
        "x" * 16,
        "1A2B0123456789AB",
        "\uff11\uff12\uff13\uff140123456789ab",
    ):
        assert worker_number(token) == 0
