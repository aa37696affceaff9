"""What only a Redis store can do well or badly: its data, its clock, its costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Enqueue,
    Granted,
    Held,
    KeyOperation,
    Parked,
    Remove,
    Renew,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Reply, open_store
from celery_exclusive.stores.redis.store import RedisStore
from tests.servers import RedisServer, wait_until
from tests.store.operations import LIFE, give, take

StartRedis = Callable[..., RedisServer]
PERMANENT = {b"cx2:{0}:fence", b"cx2:{0}:epoch", b"cx2:{0}:run"}


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    opened = open_store(redis_url)
    assert isinstance(opened, RedisStore)
    yield opened
    opened.close()


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


def permanent(redis: Any) -> set[bytes]:
    return {name for name in redis.scan_iter() if redis.pttl(name) == -1}


def test_a_lease_is_readable_with_redis_cli(store: RedisStore, redis: Any) -> None:
    granted = store.apply("key", take("a")).answer
    assert isinstance(granted, Granted)
    stored = redis.hgetall("cx2:{0}:l:key")
    expiry = granted.fence + LIFE
    assert stored == {
        b"": f"1 1 {expiry} {expiry} 0 0 0".encode(),
        b"a": f"{expiry} {granted.fence} 0 running token of a".encode(),
    }


def test_the_server_never_forgets_a_lease_that_lives(store: RedisStore, redis: Any) -> None:
    store.apply("key", take("a", 10 * SECOND))
    assert redis.pttl("cx2:{0}:l:key") >= 10_000 - 100
    store.renew([("key", Renew("a", "token of a", 60 * SECOND))])
    assert redis.pttl("cx2:{0}:l:key") >= 60_000 - 100
    store.apply("key", take("b", 90 * SECOND, limit=2))
    assert redis.pttl("cx2:{0}:l:key") >= 90_000 - 100
    store.apply("key", give("b"))
    assert redis.pttl("cx2:{0}:l:key") >= 60_000 - 100


@pytest.mark.proves("exclusion")
@pytest.mark.parametrize("hours", [-1, 1])
def test_only_the_clock_of_the_server_counts(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    granted = store.apply("key", take("a"))
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        real = getattr(time, name)
        monkeypatch.setattr(time, name, lambda real=real, unit=unit: real() + hours * 3600 * unit)
    assert isinstance(store.apply("key", take("b", message=None)).answer, Held)
    assert store.apply("key", take("a")) == granted
    assert 0 < store.inspect("key").holders[0].remaining <= LIFE


def test_a_line_outlives_the_leases_that_it_waits_for(store: RedisStore, redis: Any) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    assert redis.pttl("cx2:{0}:l:key") == -1
    assert redis.zrange("cx2:{0}:due", 0, -1) == [b"key"]


@pytest.mark.proves("nothing left")
def test_nothing_is_left_without_an_end_but_the_marks(store: RedisStore, redis: Any) -> None:
    for id in ("a", "b", "c"):
        store.apply("key", take(id))
    store.apply("key", give("a"))
    store.apply("key", take("b"))
    store.apply("key", Remove("c"))
    assert permanent(redis) == PERMANENT
    store.apply("key", give("b"))
    assert permanent(redis) == PERMANENT
    assert not list(store.scan())
    tombstones = {b"cx2:{0}:t:3:key:b", b"cx2:{0}:t:3:key:c"}
    assert set(redis.scan_iter()) == PERMANENT | tombstones


def test_a_holder_that_leaves_the_line_behind_gives_its_key_an_end_again(
    store: RedisStore, redis: Any
) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    store.apply("key", Remove("b"))
    assert 0 < redis.pttl("cx2:{0}:l:key") <= LIFE // 1000 + 1001


@pytest.mark.proves("quick ways")
def test_a_run_that_begins_ends_the_long_life_of_its_queued_lease(store: RedisStore, redis: Any) -> None:
    store.apply("key", AcquireAlone("a", "t1", 86_400 * SECOND, phase="queued"))
    assert redis.pttl("cx2:{0}:l:key") > 86_000_000
    store.apply("key", AcquireAlone("a", "t2", 30 * SECOND))
    assert 0 < redis.pttl("cx2:{0}:l:key") <= 31_001


@pytest.mark.promise(
    "Redis keeps the starts of a rate for as long as they count, in each quick way of a key with rates",
    broke="the end of the lease as that of the key, for a fresh and for a published message; no `PERSIST` of "
    "a key with a line, or with a kept message; a release that deletes the key: each red",
)
@pytest.mark.parametrize("way", ["fresh", "published", "kept"])
def test_the_starts_of_a_rate_stay_for_as_long_as_they_count(store: RedisStore, redis: Any, way: str) -> None:
    name, rates = "cx2:{0}:l:key", ((3, 3600 * SECOND),)
    options: dict[str, Any] = {"kept": {"at_once": True, "recovers": True}}.get(way, {})
    for id in "ab":
        if way == "published":
            options = {"promoted": store.epoch()}
            assert store.apply("key", Enqueue(id, b"message", rates=rates)).answer == Applied(True)
            assert redis.pttl(name) == -1
        begun = store.apply("key", replace(take(id, SECOND), rates=rates, **options)).answer
        assert isinstance(begun, Granted)
        if way == "kept":
            assert redis.pttl(name) == -1
        else:
            assert redis.pttl(name) > 3_500_000
        store.apply("key", give(id))
        assert 3_500_000 < redis.pttl(name) < 3_700_000
    assert store.inspect("key").terms.active[0].free == 1


def test_a_line_that_lost_its_lock_gets_its_turn_from_the_reaper(store: RedisStore, redis: Any) -> None:
    store.clock = lambda: 10 * SECOND
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    redis.delete("cx2:{0}:l:key")
    store.clock = lambda: 11 * SECOND + LIFE
    assert [wake.id for wake in store.reap().wake] == ["b"]
    assert store.inspect("key").waiting == 1


def test_the_reaper_clears_what_an_operator_deleted(store: RedisStore, redis: Any) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    redis.delete(*(f"cx2:{{0}}:{kind}:key" for kind in "lqaom"))
    store.clock = lambda: 2_000_000_000 * SECOND
    assert store.reap() == Reply(Applied(True), epoch=store.epoch(), swept=1, time=2_000_000_000 * SECOND)
    assert redis.zcard("cx2:{0}:due") == 0


def test_two_reapers_do_not_come_at_once(store: RedisStore, redis: Any) -> None:
    assert store.reap(every=SECOND).answer == Applied(True)
    assert store.reap(every=SECOND).answer == Applied(False)
    assert store.reap(every=0).answer == Applied(True)
    assert permanent(redis) == {b"cx2:{0}:epoch", b"cx2:{0}:run"}


def test_keys_and_ids_may_be_any_text(store: RedisStore) -> None:
    key, id = "schlüssel *[x]? \n\\{0}:l:", "ïd/\x00 1"
    store.apply(key, take("a"))
    assert isinstance(store.apply(key, take(id, message=b"\x00\xff\r\n")).answer, Parked)
    assert list(store.scan()) == list(store.scan(key)) == list(store.scan("schlüssel *[")) == [key]
    assert not list(store.scan("schlüssel *[y"))
    (wake,) = store.apply(key, give("a")).wake
    assert (wake.key, wake.id, wake.message) == (key, id, b"\x00\xff\r\n")


def test_a_tombstone_of_one_key_does_not_count_for_another(store: RedisStore) -> None:
    store.apply("k", take("holder"))
    store.apply("k", take("x:y"))
    store.apply("k", Remove("x:y"))
    other = Acquire("y", "t", LIFE, redelivered=True, message=b"")
    assert isinstance(store.apply("k:x", other).answer, Granted)


def test_a_message_of_a_megabyte_is_kept_only_when_parked(store: RedisStore, redis: Any) -> None:
    message = bytes(range(256)) * 4096
    store.apply("key", take("a", message=message))
    assert not redis.exists("cx2:{0}:m:key")
    store.apply("key", take("b", message=message))
    (wake,) = store.apply("key", give("a")).wake
    assert wake.message == message


def test_a_thousand_leases_are_renewed_in_two_calls(store: RedisStore, redis: Any) -> None:
    leases = [(f"key {i}", Renew("a", "token of a", LIFE)) for i in range(1000)]
    for key, _ in leases[:998]:
        store.apply(key, take("a"))
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert store.renew(leases) == [True] * 998 + [False] * 2
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 2 + 1  # one EVAL knows the text


def test_scan_finds_more_keys_than_one_page_has(store: RedisStore) -> None:
    expected = {f"key {i}" for i in range(3000)}
    for key in expected:
        store.apply(key, take("a"))
    found = list(store.scan("key"))
    assert len(found) == 3000
    assert set(found) == expected


@pytest.mark.promise(
    "20,000 waiting tasks cost acquire and release in Redis nothing, there and on other keys",
    figure="the same number of commands in the server",
)
def test_a_line_of_20000_costs_as_many_commands_as_one_of_ten(store: RedisStore, redis: Any) -> None:
    def cost(key: str, *, far: str) -> list[int]:
        """How many commands each verb runs inside the server: at the head, at the end, after the end."""
        store.apply(key, take("holder"))
        operations = [
            take("newcomer"),
            take("newcomer"),
            take(far),
            Remove("newcomer"),
            Remove(far),
            take("other", message=None),
            give("holder", "open"),
            take("0"),
            give("0"),
        ]
        costs = []
        for operation in operations:
            before = commands(redis)
            store.apply(key, operation)
            costs.append(commands(redis) - before)
        return costs

    for id in range(10):
        store.apply("short", take(str(id)))
        store.apply("long", take(str(id)))
    last = redis.zscore("cx2:{0}:q:long", "9")
    redis.zadd("cx2:{0}:q:long", {str(id): last + id for id in range(10, 20_000)})
    *meta, waiting, aside, behind = redis.hget("cx2:{0}:l:long", "").split()
    assert (waiting, aside, behind) == (b"9", b"0", b"0")
    redis.hset("cx2:{0}:l:long", "", b" ".join([*meta, b"19999", aside, behind]))
    store.apply("long", take("last"))
    store.apply("alone", take("a"))
    elsewhere = commands(redis)
    store.apply("alone", give("a"))
    elsewhere = commands(redis) - elsewhere
    assert elsewhere == 4  # EVALSHA, TIME, HMGET, DEL
    assert store.inspect("long").waiting == 20_000
    assert cost("long", far="19998") == cost("short", far="8")


@pytest.mark.promise(
    "In Redis a unique key costs 8 commands inside the server to acquire, 4 to release, 4 to be refused, "
    "which write nothing",
    broke="without the quick way of either",
)
def test_a_unique_key_costs_a_few_commands_and_a_refusal_writes_nothing(
    store: RedisStore, redis: Any
) -> None:
    def cost(operation: KeyOperation) -> int:
        before = commands(redis)
        store.apply("key", operation)
        return commands(redis) - before

    store.apply("another", take("so that the server knows the script"))
    first = Claim("key", "a/1", "A", LIFE)
    assert (
        cost(first.acquire_alone(LIFE, "queued")) == 8
    )  # EVALSHA, TIME, HMGET, GET, GET, SET, HSET, PEXPIREAT
    before = redis.dump("cx2:{0}:l:key")
    assert cost(replace(first, id="b/1").acquire_alone(LIFE, "queued")) == 4  # EVALSHA, TIME, HMGET, HGETALL
    assert redis.dump("cx2:{0}:l:key") == before
    assert cost(first.acquire()) == 5  # EVALSHA, TIME, HMGET, HSET, PEXPIREAT
    assert cost(first.release("if_no_copy")) == 4  # EVALSHA, TIME, HMGET, DEL


def commands(redis: Any) -> int:
    """How many the server ever ran, scripts included, but for the questions of this test."""
    counts = {name: value["calls"] for name, value in redis.info("commandstats").items()}
    return sum(calls for name, calls in counts.items() if name != "cmdstat_info")


@pytest.mark.proves("less durable line")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_check_warns_of_a_server_that_drops_keys(start_redis: StartRedis, policy: str) -> None:
    server = start_redis(appendonly=True, **{"maxmemory": "100mb", "maxmemory-policy": policy})
    store = open_store(server.url)
    (warning,) = store.check()
    assert policy in warning
    assert server.url in warning
    store.close()


def test_check_warns_of_a_server_that_keeps_nothing(start_redis: StartRedis) -> None:
    store = open_store(start_redis().url)
    (warning,) = store.check()
    assert "set appendonly to yes" in warning
    store.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"appendonly": True},
        {"appendonly": True, "maxmemory-policy": "allkeys-lru"},
        {"appendonly": True, "maxmemory-policy": "noeviction", "maxmemory": "100mb"},
    ],
)
def test_check_is_content_with_a_server_that_keeps_data(start_redis: StartRedis, settings: Any) -> None:
    store = open_store(start_redis(**settings).url)
    assert store.check() == []
    store.close()


def test_snapshots_keep_data_too(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as redis:
        redis.config_set("save", "60 1")
    store = open_store(server.url)
    assert store.check() == []
    store.close()


@pytest.mark.proves("full Redis")
def test_a_full_server_takes_no_new_lease_but_every_old_one_back(start_redis: StartRedis) -> None:
    server = start_redis()
    store = open_store(server.url)
    store.apply("key", take("a", limit=2))
    store.apply("key", take("b", limit=2))
    store.apply("line", take("a"))
    store.apply("line", take("b"))
    with server.client() as redis:
        redis.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1.*OOM.*maxmemory"):
        store.apply("another", take("a"))
    assert store.apply("key", give("a")).answer == Applied(True)
    assert store.apply("key", give("b")).answer == Applied(True)
    assert [wake.id for wake in store.apply("line", give("a")).wake] == ["b"]
    store.close()


@pytest.mark.proves("unfit store refused")
def test_a_replica_is_refused(start_redis: StartRedis) -> None:
    server = start_redis()
    store = open_store(server.url)
    with server.client() as redis:
        redis.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match=r"READONLY.*replica.*primary"):
        store.apply("key", take("a"))
    with pytest.raises(StoreUnavailable, match="primary"):
        store.check()
    store.close()


@pytest.mark.proves("unfit store refused")
def test_a_user_without_rights_gets_an_error_that_names_them(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as redis:
        redis.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "+@all", "~other:*")
        redis.config_set("requirepass", "pass:word/")
    url = server.url.removeprefix("redis://")
    with pytest.raises(StoreUnavailable, match=r"NOPERM.*exclusive_prefix"):
        open_store(f"redis://guest:secret@{url}").apply("key", take("a"))
    with pytest.raises(StoreUnavailable, match=r"NOPERM.*exclusive_prefix"):
        open_store(f"redis://guest:secret@{url}").check()
    with pytest.raises(StoreUnavailable, match=r"(NOAUTH|WRONGPASS).*password") as refused:
        open_store(f"redis://guest:mistake@{url}").apply("key", take("a"))
    assert "mistake" not in str(refused.value)
    with pytest.raises(StoreUnavailable, match=r"(NOAUTH|unauthenticated).*password"):
        open_store(server.url).apply("key", take("a"))
    allowed = open_store(f"redis://:pass%3Aword%2F@{url}")
    assert isinstance(allowed.apply("key", take("a")).answer, Granted)
    allowed.close()


@pytest.mark.proves("refused at once")
def test_the_holder_of_a_key_is_the_owner_that_a_refusal_names(store: RedisStore, redis: Any) -> None:
    now = 1_000 * SECOND
    store.clock = lambda: now
    store.apply("other", AcquireAlone("warm up", "token", LIFE))  # which leaves an idle connection
    for number in range(20):  # long ids are stored without an order
        key, id = f"key {number}", f"{'i' * 80 * (number % 2)}{number}/1"
        assert store.holder(key) == ""
        store.apply(key, AcquireAlone(id, "token", LIFE, phase="queued"))
        refused = store.apply(key, AcquireAlone("another", "another", LIFE)).answer
        assert isinstance(refused, Held)
        assert store.holder(key) == refused.by[0].id == id
        now += LIFE - 1
        assert store.holder(key) == id
        now += 1
        assert store.holder(key) == "", "its lease has expired, and the store still has it"
        assert redis.exists(f"cx2:{{0}}:l:{key}")


@pytest.mark.proves("refused at once")
def test_the_holder_of_a_key_lives_by_the_clock_of_the_server(store: RedisStore, redis: Any) -> None:
    store.apply("key", AcquireAlone("first", "token", SECOND // 5))
    assert store.holder("key") == "first"
    wait_until(lambda: not store.inspect("key").holders, "the end of the lease", 60)
    assert store.holder("key") == ""
    assert redis.exists("cx2:{0}:l:key"), "the store forgets it a second later"


@pytest.mark.proves("refused at once")
def test_the_holder_of_a_key_that_takes_a_script_to_tell_is_none(store: RedisStore, redis: Any) -> None:
    store.apply("key", take("a", limit=2))
    assert store.holder("key") == "a"
    store.apply("key", take("b", limit=2))
    assert store.holder("key") == ""
    for value in ("", "soon 1 0 running token", "1"):
        redis.delete("cx2:{0}:l:damaged")
        redis.hset("cx2:{0}:l:damaged", mapping={"": "1 1 9 9 0 0 0", "id": value})
        assert store.holder("damaged") == ""
    redis.set("cx2:{0}:l:text", "of another program")
    assert store.holder("text") == ""
    assert store.holder("key") == ""
    store.close()
    assert store.holder("key") == "", "there is no idle connection"
