"""A look at all keys of a store: what it reads, and what its numbers say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from celery_exclusive.core.operations import Acquire, AcquireAlone
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.operate.finding import damaged_keys
from celery_exclusive.operate.look import MOST, Look, look
from celery_exclusive.stores.base import Snapshot, open_store
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.redis.store import RedisStore
from tests.servers import RedisServer

MANY = MOST + 500
TTL = 600 * SECOND


class Counted(MemoryStore):
    """A store that counts the states that are read."""

    reads = 0
    names: Callable[[], Iterator[str]] | None = None

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        self.reads += len(keys)
        return super().inspect_all(keys)

    def scan(self, prefix: str = "") -> Iterator[str]:
        return self.names() if self.names else super().scan(prefix)


@pytest.fixture
def store() -> Counted:
    return Counted(f"memory://{uuid4()}")


def queue(store: Any, key: str) -> None:
    store.apply(key, AcquireAlone("id/p", "p", TTL, phase="queued"))


def wait(store: Any, key: str, count: int) -> None:
    store.apply(key, Acquire("holder/p", "token", TTL))
    for number in range(count):
        store.apply(key, Acquire(f"{number}/p", "token", TTL, message=b"message"))


def name_of(key: str) -> str:
    return key.split(":")[1]


def holders(seen: Look, name: str) -> float:
    return sum(
        group.weight * sum(len(it.holders) for it in group.states.values())
        for group in seen.groups
        if group.name == name
    )


@pytest.mark.promise(
    "A look at a store reads the states of at most 2,000 keys, however many there are. The lengths of lines, "
    "and what few keys of a task hold, are exact all the same",
    name="a look",
    broke="all states read; lines of the chosen keys alone; keys chosen without their task: each red",
    figure="by hand, 150,000 queued keys: a scrape took 10 s, 4.6 s of them of the Redis, and takes 0.9 s, "
    "0.13 s of them",
)
def test_a_look_at_many_keys_reads_a_part_and_counts_lines_and_small_groups_exactly(store: Counted):
    for number in range(MANY):
        queue(store, f"u:large:{number}")
    for number in range(3):
        queue(store, f"u:small:{number}")
    wait(store, "x:large:one", 30)
    seen = look(store, name_of, 60)
    assert store.reads == MOST
    assert seen.ratio == MOST / (MANY + 4)
    assert {line[:3] for line in seen.lines.values()} == {("x:large:one", 30, 0)}
    assert holders(seen, "small") == 3
    assert holders(seen, "large") == pytest.approx(MANY + 1)
    assert ("x:large:one", 10) in {(key, len(state.line)) for key, state in seen.states}


@pytest.mark.proves("a look")
def test_a_look_at_few_keys_reads_all(store: Counted):
    for number in range(300):
        queue(store, f"u:small:{number}")
    seen = look(store, name_of, 60)
    assert (store.reads, seen.ratio, holders(seen, "small")) == (300, 1, 300)
    assert look(Counted(f"memory://{uuid4()}")).ratio == 1


@pytest.mark.promise(
    "A look reads the key whose first in line has waited longest, among however many, and the keys that a "
    "sweep could not read",
    name="the worst in a look",
    broke="red before, in ten of ten looks",
)
def test_a_look_at_many_lines_reads_the_one_that_has_waited_longest(store: Counted):
    wait(store, "x:large:hangs", 1)
    late = store.clock() + TTL // 2
    store.clock = lambda: late
    for number in range(3 * MOST):
        wait(store, f"x:large:{number}", 1)
    for looks in range(1, 6):
        seen = look(store, name_of, 60)
        ages = {key: one.age for key, state in seen.states for one in state.line}
        assert max(ages.values()) >= TTL // 2 - SECOND
        assert store.reads == looks * MOST
        assert holders(seen, "large") == pytest.approx(3 * MOST + 1)


@pytest.mark.proves("the worst in a look")
def test_a_look_at_many_lines_of_a_redis_reads_the_worst(redis_server: RedisServer, redis_url: str):
    store = open_store(redis_url, prefix="worst")
    damaged = [f"x:k:{number}" for number in range(0, MANY, MANY // 4)]
    with redis_server.client() as client:
        base = "worst2:{0}:"
        wait(store, "x:k:hangs", 1)
        client.zadd(f"{base}q:x:k:hangs", {"0/p": 1})
        client.zadd(f"{base}due", {f"x:k:{number}": 2**53 - 1 for number in range(MANY)})
        for key in damaged:
            client.set(f"{base}l:{key}", "of another program")
        client.zadd(f"{base}due", dict.fromkeys(damaged, 1))
        store.reap()
        seen = dict(look(store, name_of, 60).states)
        assert damaged_keys(store) == sorted(damaged)
    store.close()
    assert "x:k:hangs" in seen
    assert all(seen[key].problem for key in damaged)


@pytest.mark.promise(
    "A look ends in time with what it has found, and says so, if the store answers too late for all of it",
    broke="the names are read to the end; the look raises; its numbers pass for all keys: each red",
)
def test_a_look_at_a_slow_store_ends_with_what_it_has_found(store: Counted):
    for number in range(300):
        queue(store, f"u:k:{number}")

    def endless() -> Iterator[str]:
        while True:
            yield from (f"u:k:{number}" for number in range(300))

    def silent() -> Iterator[str]:
        yield "u:k:1"
        raise StoreUnavailable("it takes too long")

    for names in (endless, silent):
        store.names = names
        seen = look(store, name_of, 0.2)
        assert seen.ratio == 0
        assert seen.keys in (300, 1)
    store.names = store.lines = lambda: iter(away())  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable):
        look(store, name_of)


def away() -> list[str]:
    raise StoreUnavailable("away")


@pytest.mark.proves("a look")
@pytest.mark.parametrize("lines", [0, MANY])
def test_a_look_asks_a_redis_for_names_lengths_of_lines_and_2000_states(
    redis_server: RedisServer, redis_url: str, lines: int
):
    """Of each key its name, of each line three lengths, or four, and of 2,000 keys the rest."""
    store = open_store(redis_url, prefix=f"look{lines}")
    assert isinstance(store, RedisStore)
    for number in range(MANY):
        queue(store, f"u:k:{number}")
    with redis_server.client() as client:
        if lines:
            client.zadd(f"look{lines}2:{{0}}:due", {f"u:k:{number}": 2**53 - 1 for number in range(lines)})
        client.config_resetstat()
        seen = look(store, name_of, seconds=60)
        calls = {name[8:]: it["calls"] for name, it in client.info("commandstats").items()}
    store.close()
    assert seen.ratio < 1
    assert calls["evalsha"] == MOST // 100 + lines // 500 + 1
    assert calls["zcard"] == 3 * MOST + 4 * lines
    assert calls["hgetall"] <= MOST


@pytest.mark.promise(
    "A task is found by its id among all keys without their states: a Redis is asked once for 500 keys",
    broke="the states of all keys: red; long lines left out: red",
    figure="by hand, 150,000 queued keys: `why ID` took 6.6 s, and takes 1.9 s; of an unknown id 22 s and "
    "3.3 s",
)
def test_a_task_is_found_by_its_id_without_the_states_of_all_keys(redis_server: RedisServer, redis_url: str):
    store = open_store(redis_url, prefix="find")
    for number in range(MANY):
        store.apply(f"u:k:{number}", AcquireAlone(f"task{number}/p", "p", TTL, phase="queued"))
    wait(store, "x:long", 1)
    with redis_server.client() as client:
        client.zadd("find2:{0}:q:x:long", {f"{number}/p": number for number in range(MANY)})
        client.config_resetstat()
        assert [*store.keys_of("task7")] == ["u:k:7"]
        calls = {name[8:]: it["calls"] for name, it in client.info("commandstats").items()}
    assert [*store.keys_of(str(MANY - 1))] == ["x:long"]
    store.close()
    assert calls["evalsha"] == 1 + -(-(MANY + 1) // 500)
    assert calls["hkeys"] == MANY + 2  # and what the sweeps could not read
    assert calls["hmget"] == 1  # of the first in the only line, since when it waits
    assert "hgetall" not in calls
