"""What `locks` asks of a store where 20,000 tasks wait, or 5,000 keys are held: counted, not timed."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive import locks
from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND, Entry
from tests.cli.conftest import Desk
from tests.postgres import PostgresDatabase
from tests.servers import RedisServer

LONG, KEYS, KEY = 20_000, 5_000, "x=long"
PAGES = LONG // 250
COLUMNS = "namespace, key, offer_until, offers, state, deaths, deadline, flags, cost, part, message"
SELECT = f"INSERT INTO exclusive2_line (seq, place, {COLUMNS}, id) SELECT seq + n, place + n, {COLUMNS}"
OF_FIRST = "WHERE state = 'waiting'"


class Counted:
    """A store that counts the requests of each verb."""

    def __init__(self, store: Any) -> None:
        self._store, self.asked = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def ask(*args: Any, **options: Any) -> Any:
            self.asked[name] += 1
            return found(*args, **options)

        return ask


def count(desk: Desk) -> Counter[str]:
    store = desk.store._store
    counted = desk.store._store = Counted(
        getattr(store, "_store", store) if isinstance(store, Counted) else store
    )
    return counted.asked


def lengthen_redis(server: RedisServer) -> None:
    with server.client() as redis:
        name = f"cx2:{{0}}:q:{KEY}"
        first = redis.zscore(name, "t0/p")
        redis.zadd(name, {f"t{n}/p": first + n for n in range(1, LONG)})
        *meta, _, aside, behind = redis.hget(f"cx2:{{0}}:l:{KEY}", "").split()
        redis.hset(f"cx2:{{0}}:l:{KEY}", "", b" ".join([*meta, b"%d" % LONG, aside, behind]))


def lengthen_postgres(database: PostgresDatabase) -> None:
    numbers = f"generate_series(1, {LONG - 1}) AS n"
    with database.stranger() as cursor:
        cursor.execute(f"{SELECT}, ('t' || n || '/p')::bytea FROM exclusive2_line, {numbers} {OF_FIRST}")
        cursor.execute(f"UPDATE exclusive2_lock SET waiting = {LONG}")


def lengthen_sqlite(path: Path) -> None:
    numbers = (
        f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION SELECT n + 1 FROM s WHERE n < {LONG - 1}) SELECT n FROM s)"
    )
    with closing(sqlite3.connect(path)) as database, database:
        id = "CAST('t' || n || '/p' AS BLOB)"
        database.execute(f"{SELECT}, {id} FROM exclusive2_line, {numbers} {OF_FIRST}")
        database.execute(f"UPDATE exclusive2_lock SET waiting = {LONG}")


def lengthen_memory(store: Any) -> None:
    kept = store._memory.keys[KEY]
    first = kept.entries["t0/p"]
    for n in range(1, LONG):
        kept.entries[f"t{n}/p"] = Entry(f"t{n}/p", first.seq + n)
    kept.waiting = [(entry.seq, entry.id) for entry in kept.entries.values()]


@pytest.fixture(
    params=["redis", "postgres", *(pytest.param(it, marks=pytest.mark.large) for it in ("memory", "sqlite"))]
)
def desk(request: pytest.FixtureRequest, make_desk: Callable[..., Desk], tmp_path: Path) -> Desk:
    """A desk at a store where 20,000 tasks wait for a key: t0, t1 and so on."""
    kind, file = request.param, tmp_path / "locks.db"
    own = {"memory": f"memory://{tmp_path}", "sqlite": f"sqlite:///{file}"}
    if kind == "postgres":
        request.getfixturevalue("postgres_database").empty()
    desk = make_desk(exclusive_store=own.get(kind) or request.getfixturevalue(f"{kind}_url"))
    for id in ("holder/p", "t0/p"):
        desk.store.apply(KEY, Acquire(id, "token", 3_600 * SECOND, message=b"message"))
    if kind == "memory":
        lengthen_memory(desk.store._store)
    elif kind == "sqlite":
        lengthen_sqlite(file)
    elif kind == "redis":
        lengthen_redis(request.getfixturevalue("redis_server"))
    else:
        lengthen_postgres(request.getfixturevalue("postgres_database"))
    return desk


@pytest.mark.promise(
    "Where 20,000 tasks wait, `locks why` finds a task by its id with its place in 100 requests of the store "
    "at most, one per 250 tasks ahead of it; `locks show` reads the line once, page by page",
    name="why in a long line",
    broke="each place inspected; the line read for a task that waits elsewhere",
    figure="by hand: 2.5 s for the last of 20,000, beside 5,000 held keys, on a busy machine",
)
def test_the_last_of_20000_is_found_in_a_bounded_number_of_requests(desk: Desk) -> None:
    asked = count(desk)
    answer = locks.why(f"t{LONG - 1}", app=desk.app)
    assert answer.sentence.startswith(f"WAITING: place 20,000 of 20,000 for {KEY}, for ")
    assert asked.pop("line") == PAGES
    assert sum(asked.values()) <= 10, asked


@pytest.mark.proves("why in a long line")
def test_an_id_that_waits_nowhere_reads_no_line(desk: Desk) -> None:
    asked = count(desk)
    assert locks.why("unknown", app=desk.app).reason == "not_ours"
    assert "line" not in asked
    assert sum(asked.values()) <= 10, asked
    asked.clear()
    assert locks.why("holder", app=desk.app).reason == "running"
    assert "line" not in asked


@pytest.mark.proves("why in a long line")
def test_show_reads_the_line_page_by_page_and_only_as_far_as_it_shows_it(desk: Desk) -> None:
    asked = count(desk)
    shown = desk.run("show", KEY).stdout.splitlines()
    assert len(shown) == 3 + LONG
    assert shown[-1].startswith("  20,000 in line: t19999, for ")
    assert asked["line"] == PAGES
    asked.clear()
    assert desk.run("show", KEY, "--limit", "251").stdout.splitlines()[-1] == "  and 19,749 more wait"
    assert asked["line"] == 2
    (lock,) = map(json.loads, desk.run("show", KEY, "--json", "--limit", "1").stdout.splitlines())
    assert ([one["task_id"] for one in lock["line"]], lock["waiting"]) == (["t0"], LONG)


@pytest.mark.promise(
    "`locks ls` of 5,000 keys takes two requests for each hundred keys, and has a hundred in memory",
    broke="a message read per key; all states read before the first is printed",
)
def test_keys_are_listed_a_hundred_at_a_time(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    for number in range(KEYS):
        desk.acquire(f"x=key {number}", "a/p")
    asked = count(desk)
    found = locks.keys(app=desk.app)
    assert next(found).holders[0].task_id == "a"
    assert (asked["inspect_all"], asked["messages_of"]) == (1, 1)
    assert len(list(found)) == KEYS - 1
    assert (asked["inspect_all"], asked["messages_of"]) == (KEYS // 100, KEYS // 100)
    assert set(asked) == {"scan", "inspect_all", "messages_of"}
