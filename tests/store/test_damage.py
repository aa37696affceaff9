"""One key whose data are damaged harms no other key, is told, and can be dropped."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_exclusive.core.operations import Acquire, Applied, Granted, Parked, Renew
from celery_exclusive.core.records import SECOND, SKIP_UNREADABLE
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import open_store
from tests.servers import RedisServer
from tests.store.conftest import Database
from tests.store.operations import LIFE, give, take

START = 1_800_000_000 * SECOND
KEYS = ("bad", "one", "two")
REDIS: dict[str, tuple[Any, ...]] = {
    **{f"{kind}: of a wrong type": ("SET", f"cx2:{{0}}:{kind}:bad", "x") for kind in "lqabm"},
    "counts": ("HSET", "cx2:{0}:l:bad", "", "many"),
    "terms": ("HSET", "cx2:{0}:l:bad", "", "rate many\n1 1 9 9 1 0 0"),
    "terms of others": ("HSET", "cx2:{0}:l:bad", "", "speed 9\n1 1 9 9 1 0 0"),
    "a rate without a period": ("HSET", "cx2:{0}:l:bad", "", "rate 9\n1 1 9 9 1 0 0"),
    "a lease": ("HSET", "cx2:{0}:l:bad", "a", "for ever"),
    "an offer": ("HSET", "cx2:{0}:o:bad", "b", "next week"),
}
SQLITE = {
    "no JSON": "UPDATE exclusive2_lock SET document = 'x'",
    "other JSON": "UPDATE exclusive2_lock SET document = '[]'",
    "no expiry": "UPDATE exclusive2_lock SET document = replace(document, 'expiry', 'ends')",
    "a version": "UPDATE exclusive2_lock SET version = 0",
    "a version in words": "UPDATE exclusive2_lock SET version = 'x'",
    "a place": "UPDATE exclusive2_line SET offer_until = 'soon'",
    "offers without end": "UPDATE exclusive2_line SET offers = 9223372036854775807",
}
SERVERS = {
    f"{what} in {kind}": (kind, statement)
    for kind in ("postgres", "maria")
    for what, statement in SQLITE.items()
    if what in ("no JSON", "other JSON", "no expiry", "a version")
}
"""Their columns have types: a place that is no number cannot be written."""


class Bench:
    """A store whose clock the test sets, where b waits for a at each key."""

    def __init__(self, url: str, damage: Callable[[], object]) -> None:
        self.store: Any = open_store(url)
        self.now = START
        self.store.clock = lambda: self.now
        for key in KEYS:
            for id in "ab":
                self.acquire(key, id)
        damage()

    def acquire(self, key: str, id: str) -> object:
        ask = Acquire(id, f"token of {id}", LIFE, message=b"message")
        return self.store.apply(key, ask).answer


@pytest.fixture(params=[*REDIS, *SQLITE, *SERVERS])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    what = request.param
    if what in SQLITE:
        path = tmp_path / "locks.db"

        def damage() -> None:
            with closing(sqlite3.connect(path)) as database, database:
                assert database.execute(f"{SQLITE[what]} WHERE key = X'626164'").rowcount

        return Bench(f"sqlite:///{path}", damage)
    if what in SERVERS:
        kind, statement = SERVERS[what]
        locks: str = request.getfixturevalue(f"{kind}_url")
        database: Database = request.getfixturevalue(f"{kind}_database")
        return Bench(locks, lambda: database.ask(f"""{statement} WHERE "key" = 'bad'"""))
    server: RedisServer = request.getfixturevalue("redis_server")
    url: str = request.getfixturevalue("redis_url")

    def harm() -> None:
        with server.client() as redis:
            redis.execute_command(*REDIS[what])

    return Bench(url, harm)


@pytest.mark.promise(
    "A lock whose data are damaged (another type, counts, a lease or an offer that does not parse; JSON "
    "that is none) is set aside, reported once per worker, and listed. Reaper and heartbeat go on with the "
    "others. The error of a call that needs it names the way out, and `--force` drops it",
    name="damaged lock",
    broke=(
        "an error of one key ends the sweep, or the renewal, or the listing; not taken out of what is due; "
        "not forgotten by `--force`; an error that names no key: all red on Redis and SQLite; a version of "
        "0, or offers without end: a call that never returned, and held SQLite's write lock"
    ),
)
def test_the_reaper_sets_a_damaged_key_aside_and_looks_after_the_others(bench: Bench) -> None:
    bench.now += LIFE
    reply = bench.store.reap()
    assert sorted(wake.key for wake in reply.wake) == ["one", "two"]
    ((key, problem),) = reply.unreadable
    assert key == "bad"
    assert problem
    again = bench.store.reap()
    assert (again.answer, again.wake, again.unreadable) == (Applied(True), (), ())
    bench.now += SKIP_UNREADABLE
    assert [key for key, _ in bench.store.reap().unreadable] == ["bad"]


@pytest.mark.proves("damaged lock")
def test_the_leases_of_other_keys_are_renewed(bench: Bench) -> None:
    leases = [(key, Renew("a", "token of a", 2 * LIFE)) for key in ("one", "bad", "two")]
    first, _, last = bench.store.renew(leases)
    assert (first, last) == (True, True)
    assert bench.store.inspect("two").holders[0].remaining == 2 * LIFE


@pytest.mark.proves("damaged lock")
def test_a_damaged_key_is_listed_until_it_is_dropped(bench: Bench) -> None:
    bench.now += LIFE
    bench.store.reap()
    assert set(bench.store.scan()) == set(KEYS)
    assert [snapshot.waiting for snapshot in bench.store.inspect_all(["one", "two"])] == [1, 1]
    bench.store.inspect_all(KEYS)
    bench.store.forget("bad")
    assert set(bench.store.scan()) == {"one", "two"}
    bench.now += SKIP_UNREADABLE
    assert not bench.store.reap().unreadable
    assert isinstance(bench.acquire("bad", "c"), Granted)
    assert isinstance(bench.acquire("bad", "d"), Parked)


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize(
    "bench",
    ["l: of a wrong type", "q: of a wrong type", "counts", "a lease", "an offer", *SQLITE, *SERVERS],
    indirect=True,
)
def test_the_error_of_a_damaged_key_names_it_and_the_remedy(bench: Bench) -> None:
    bench.now += LIFE
    with pytest.raises(
        UnreadableKey, match=r"lock bad are damaged \(.+locks release --force --reason 'damaged data' -- bad$"
    ):
        bench.acquire("bad", "c")


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize(
    "bench",
    [*(f"{kind}: of a wrong type" for kind in "lqam"), "counts", "an offer", *SQLITE, *SERVERS],
    indirect=True,
)
def test_a_page_of_a_damaged_line_says_so_and_other_lines_are_read(bench: Bench) -> None:
    with pytest.raises(UnreadableKey, match=r"lock bad are damaged"):
        bench.store.line("bad")
    for key in ("one", "two"):
        assert [(it.waiting.id, it.message) for it in bench.store.line(key).places] == [("b", b"message")]


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize("fence", [f"{2**63 - 1}", "inf", "nan", "x"])
def test_an_odd_last_fence_in_redis_damages_no_key(
    redis_server: RedisServer, redis_url: str, fence: str
) -> None:
    store = open_store(redis_url)
    for number, acquire in enumerate((Acquire("a", "t", LIFE), Acquire("a", "t", LIFE, redelivered=True))):
        with redis_server.client() as redis:
            redis.set("cx2:{0}:fence", fence)
        assert isinstance(store.apply(f"k{number}", acquire).answer, Granted)
        assert isinstance(store.apply(f"k{number}", Acquire("b", "t", LIFE, message=b"m")).answer, Parked)
        assert [place.waiting.id for place in store.line(f"k{number}").places] == ["b"]
    store.close()


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize("name", ["fence", "epoch", "due"])
def test_damage_that_all_keys_share_is_not_reported_as_damage_of_one(
    redis_server: RedisServer, redis_url: str, name: str
) -> None:
    store = open_store(redis_url)
    store.apply("k", Acquire("a", "t", LIFE))
    with redis_server.client() as redis:
        redis.delete(f"cx2:{{0}}:{name}")
        redis.lpush(f"cx2:{{0}}:{name}", "x")
    again = Acquire("b", "t", LIFE, promoted="an epoch", message=b"message")
    with pytest.raises(StoreUnavailable, match=rf"cx2:\{{0\}}:{name} was overwritten by") as raised:
        store.apply("other" if name == "fence" else "k", again)
    assert not isinstance(raised.value, UnreadableKey)
    store.close()


@pytest.mark.proves("damaged lock")
@pytest.mark.parametrize("record", ["rubbish", "1", "1.0 5", "2 99999999999999999999999"])
def test_an_odd_count_of_a_part_in_redis_loses_no_task(
    redis_server: RedisServer, redis_url: str, record: str
) -> None:
    with closing(open_store(redis_url)) as store, redis_server.client() as client:
        store.apply("key", take("a"))
        store.apply("key", replace(take("b"), part="acme"))
        client.hset("cx2:{0}:p:key", "acme", record)
        assert isinstance(store.apply("key", replace(take("c"), part="acme")).answer, Parked)
        places = store.line("key").places
        assert [(it.waiting.id, it.waiting.part, it.message) for it in places] == [
            ("b", "acme", b"message"),
            ("c", "acme", b"message"),
        ]
        for id in "abc":
            wakes = store.apply("key", give(id)).wake
            for wake in wakes:
                store.apply("key", replace(take(wake.id), promoted=wake.epoch))
        assert not client.exists("cx2:{0}:p:key")
