"""A key with many holders: a call beside a thousand costs what a call beside a few costs."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import install, lock
from celery_exclusive.core.operations import (
    Acquire,
    ForceRelease,
    Granted,
    Held,
    Parked,
    Reap,
    Release,
    Renew,
)
from celery_exclusive.core.records import ENDED_AT_ONCE, NAMED, SECOND
from celery_exclusive.errors import LockHeld
from celery_exclusive.leases.operator_release import _release
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.sql.sqlite import SqliteStore
from tests.store.test_redis import RedisStore, commands, redis, store
from tests.store.test_sqlite import trace

__all__ = ["redis", "store"]
FEW, MANY = NAMED + 2, 1_000
INDEX = "cx2:{0}:x:"
WAYS: dict[str, dict[str, Any]] = {
    "early": {},
    "kept": {"acks_late": True, "recovers": True, "message": b"message"},
}


def hold(store: Store, key: str, count: int, ttl: int = 3600 * SECOND, **options: Any) -> None:
    for number in range(count):
        store.apply(key, Acquire(f"{number}", "token", ttl, MANY, **options))


def pair(store: Store, key: str, **options: Any) -> None:
    granted = store.apply(key, Acquire("task", "token", 3600 * SECOND, MANY + 1, **options))
    assert isinstance(granted.answer, Granted)
    store.apply(key, Release("task", "token"))


@pytest.mark.promise(
    "A call of a key with a thousand holders reads and writes as much as one of a key with a dozen; an "
    "answer names ten of them, with the number of the others",
    name="many holders",
    broke="each holder read; the index not written by a renewal; the number of the others left out",
    figure="Redis: 41 commands beside 12, 1,000 and 3,000 holders with the message kept, 16 without",
    command="python -m bench holders",
)
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_a_call_beside_a_thousand_holders_sends_redis_as_many_commands_as_beside_a_dozen(
    store: RedisStore, redis: Any, options: dict[str, Any]
) -> None:
    costs = []
    for count in (FEW, MANY):
        hold(store, f"beside {count}", count, **options)
        pair(store, f"beside {count}", **options)
        before = commands(redis)
        pair(store, f"beside {count}", **options)
        costs.append(commands(redis) - before)
        assert redis.zcard(f"{INDEX}beside {count}") == count
    assert costs[0] == costs[1]


@pytest.mark.proves("many holders")
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_a_call_beside_a_thousand_holders_costs_a_database_as_many_statements_as_beside_a_dozen(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/locks.db")
    for count in (FEW, MANY):
        hold(store, f"beside {count}", count, **options)
    statements = trace(store)
    costs = []
    for count in (FEW, MANY):
        statements.clear()
        pair(store, f"beside {count}", **options)
        costs.append(len(statements))
    assert costs[0] == costs[1] < 30
    store.close()


@pytest.mark.proves("many holders")
def test_a_thousand_leases_of_one_key_are_renewed_in_a_database_at_once_and_none_is_made_anew(
    tmp_path: Path,
) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/locks.db")
    hold(store, "key", MANY)
    leases = [("key", Renew(f"{number}", "token", 7200 * SECOND)) for number in range(MANY)]
    assert store.renew([*leases, ("key", Renew("stranger", "token", SECOND))]) == [True] * MANY + [False]
    seen = store.inspect("key")
    assert (
        seen.others + len(seen.holders),
        min(owner.remaining for owner in seen.holders) > 7000 * SECOND,
    ) == (
        MANY,
        True,
    )
    store.close()


@pytest.mark.proves("many holders")
def test_an_answer_names_ten_holders_and_counts_the_others(store: RedisStore) -> None:
    hold(store, "key", MANY)
    for message in (None, b"message"):
        answer = store.apply("key", Acquire("task", "token", SECOND, MANY, message=message)).answer
        assert isinstance(answer, (Held, Parked))
        assert (len(answer.by), answer.others) == (NAMED, MANY - NAMED)
    seen = store.inspect("key")
    assert (len(seen.holders), seen.others) == (NAMED, MANY - NAMED)


@pytest.mark.proves("many holders")
def test_an_index_that_another_program_has_deleted_is_written_anew_by_the_next_call(
    store: RedisStore, redis: Any
) -> None:
    hold(store, "key", FEW, ttl=1, **WAYS["kept"])
    hold(store, "key", FEW + 1, **WAYS["kept"])
    before = redis.zrange(INDEX + "key", 0, -1, withscores=True)
    redis.delete(INDEX + "key")
    assert store.inspect("key").others == FEW + 1 - NAMED
    store.apply("key", Acquire("task", "token", 3600 * SECOND, FEW, message=b"message"))
    assert redis.zrange(INDEX + "key", 0, -1, withscores=True) == before
    assert len(before) == FEW + 1


@pytest.mark.proves("many holders")
def test_the_index_of_a_key_ends_with_its_leases_and_a_key_with_few_has_none(
    store: RedisStore, redis: Any
) -> None:
    hold(store, "key", NAMED)
    assert not redis.exists(INDEX + "key")
    hold(store, "key", NAMED + 1)
    assert 3_600_000 - 2_000 < redis.pttl(INDEX + "key") < 3_600_000 + 2_000
    store.renew([("key", Renew("0", "token", 7200 * SECOND))])
    assert redis.zscore(INDEX + "key", "0") > redis.zscore(INDEX + "key", "1")
    assert redis.pttl(INDEX + "key") > 7_200_000 - 2_000
    store.apply("key", Release("0", "token"))
    assert not redis.exists(INDEX + "key")


@pytest.mark.promise(
    "Of many leases that expire together a step ends a hundred, and the sweeps the rest at once",
    broke="all ended by one step",
)
def test_a_step_ends_a_hundred_leases_and_the_next_sweep_is_due_at_once() -> None:
    store = MemoryStore(f"memory://{token_hex(8)}")
    now = [SECOND]
    store.clock = lambda: now[0]
    hold(store, "key", 3 * ENDED_AT_ONCE, ttl=SECOND)
    store.apply("key", Acquire("waits", "token", SECOND, 1, message=b"message"))
    now[0] += SECOND
    for expected in ([], [], ["waits"]):
        assert store.due(1, 0) == ["key"]
        assert [wake.id for wake in store.apply("key", Reap()).wake] == expected


@pytest.mark.proves("many holders")
def test_an_expired_lease_among_many_makes_room_for_the_next_call(store: RedisStore) -> None:
    now = [1_000 * SECOND]
    store.clock = lambda: now[0]
    store.apply("key", Acquire("short", "token", SECOND, MANY))
    hold(store, "key", FEW)
    store.apply("key", Acquire("0", "token", SECOND, FEW + 1, redelivered=True))  # reads only a part of them
    now[0] += SECOND
    assert isinstance(store.apply("key", Acquire("next", "token", SECOND, FEW + 1)).answer, Granted)


@pytest.fixture(params=["memory", "redis", "sqlite"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store with a clock that only moves when told."""
    if request.param == "redis":
        return open_store(request.getfixturevalue("redis_url"))
    if request.param == "sqlite":
        return SqliteStore(f"sqlite:///{tmp_path}/locks.db")
    return MemoryStore(f"memory://{token_hex(8)}")  # another one keeps the fences of an earlier test


@pytest.mark.promise(
    "When a step that ends a hundred leases leaves few holders, the leases that it has not read stay",
    broke="red before, in a database",
)
def test_leases_that_a_step_has_not_read_stay_when_a_key_has_few_holders_again(any_store: Any) -> None:
    store, now = any_store, [1_000 * SECOND]
    store.clock = lambda: now[0]
    hold(store, "key", ENDED_AT_ONCE, ttl=SECOND)
    for number in range(5):
        kept = Acquire(f"paused {number}", "token", 2 * SECOND, MANY, **WAYS["kept"])
        store.apply("key", kept)
    for number in range(6):
        store.apply("key", Acquire(f"living {number}", "token", 300 * SECOND, MANY))
    now[0] += 3 * SECOND
    store.apply("key", Release("living 0", "token"))
    assert len(store.inspect("key").holders) == 10
    assert list(store.renew([("key", Renew("paused 0", "token", 60 * SECOND))])) == [True]
    newcomer = store.apply("key", Acquire("next", "token", SECOND, MANY))
    assert newcomer.wake == ()
    store.close()


@pytest.mark.proves("many holders")
@pytest.mark.parametrize("what", ["l:", "fields", "x:"])
def test_a_line_goes_on_though_another_program_has_deleted_the_leases_of_many_holders(
    store: RedisStore, redis: Any, what: str
) -> None:
    now = [1_000 * SECOND]
    store.clock = lambda: now[0]
    hold(store, "key", FEW, ttl=10 * SECOND)
    store.apply("key", Acquire("waits", "token", SECOND, FEW, message=b"message"))
    if what == "fields":
        redis.hdel("cx2:{0}:l:key", *map(str, range(FEW)))
    else:
        redis.delete(f"cx2:{{0}}:{what}key")
    now[0] += 20 * SECOND
    woken = {wake.id for _ in range(3) for wake in store.reap().wake}
    assert woken == {"waits"}


@pytest.mark.promise(
    "A release by force ends all leases that a key with many holders had when it began, and no newer one",
    broke="the loop went on with each task that began meanwhile",
)
def test_release_by_force_takes_no_task_along_that_begins_meanwhile() -> None:
    store = MemoryStore(f"memory://{token_hex(8)}")
    now = [SECOND]
    store.clock = lambda: now[0]
    hold(store, "key", FEW, ttl=7200 * SECOND)
    now[0] += 3600 * SECOND  # older than the release can take
    apply = store.apply

    def begin_another(key: str, operation: Any) -> Any:
        """Let another task take each slot that is released."""
        reply = apply(key, operation)
        if isinstance(operation, ForceRelease):
            apply(key, Acquire(f"after {operation.id}", "token", 3600 * SECOND, FEW))
        return reply

    store.apply = begin_another  # type: ignore[method-assign]
    with pytest.raises(LockHeld):
        _release(store, "key", [], force=False)
    released = _release(store, "key", [], force=True)
    assert {holder.id for holder in released.former} == {str(number) for number in range(FEW)}
    assert store.inspect("key").others + NAMED == FEW


@pytest.mark.promise(
    "`locked()` of a lock with more than ten slots is true when all are taken",
    broke="red before: only the ten that a look names counted",
)
def test_a_lock_with_more_than_ten_slots_says_when_all_are_taken() -> None:
    app: Any = install(Celery("locks", broker="memory://", set_as_current=False))
    app.conf.exclusive_store = "memory://slots"
    locks = [lock("key", limit=FEW, app=app) for _ in range(FEW)]
    for one in locks[1:]:
        one.acquire()
    assert not locks[0].locked()
    locks[0].acquire()
    assert locks[0].locked()
    for one in locks:
        one.release()
