"""A Redis whose memory is full: who holds a key keeps it and releases it, a line is done, newcomers wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Granted,
    Release,
    Renew,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.stores.workers import WorkerRecord
from tests.conftest import or_leave_out
from tests.redis_tls import DebianRedis
from tests.servers import RedisServer
from tests.store.operations import LIFE, give, take
from tests.store.verbs import KNOWN, NEW

pytestmark = pytest.mark.promise(
    "A Redis whose memory is full refuses newcomers, which changes nothing, and goes on with what it has: "
    "every verb, on Valkey and on Redis 7.0; heartbeat and reaper; a line is done to its end",
    name="full Redis",
    broke=(
        "red before, 13 of 26: no lease was renewed, no dead holder ended, no offer could be taken, so a "
        "line that had filled the memory stayed for ever"
    ),
)


@pytest.fixture(scope="module", params=[RedisServer, DebianRedis], ids=["usual", "debian"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with or_leave_out(request.param) as server:
        yield server


@pytest.fixture
def fill(server: RedisServer) -> Iterator[Callable[[bool], None]]:
    with server.client() as redis:

        def fill(is_full: bool = True) -> None:
            redis.config_set("maxmemory", int(is_full))

        yield fill
        fill(False)


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    server.refresh()
    opened = open_store(server.url)
    assert isinstance(opened, RedisStore)
    opened.epoch()
    yield opened
    opened.close()


@pytest.mark.parametrize("name", KNOWN)
def test_a_full_server_still_serves_locks_that_it_already_has(
    store: Store, fill: Callable[..., None], name: str
) -> None:
    before, operation = KNOWN[name]
    for key in ("key", "twin"):
        for earlier in before:
            store.apply(key, earlier)
    fill()
    done = store.apply("key", operation)
    fill(False)
    twin = store.apply("twin", operation)
    assert type(done.answer) is type(twin.answer)
    assert [wake.id for wake in done.wake] == [wake.id for wake in twin.wake]
    seen, expected = store.inspect("key"), store.inspect("twin")
    assert [owner.id for owner in seen.holders] == [owner.id for owner in expected.holders]
    assert (seen.waiting, seen.aside) == (expected.waiting, expected.aside)


@pytest.mark.parametrize("name", NEW)
def test_newcomers_are_refused_and_nothing_is_changed(
    store: Store, fill: Callable[..., None], name: str
) -> None:
    before, operation = NEW[name]
    for earlier in before:
        store.apply("key", earlier)
    owners = [owner.id for owner in store.inspect("key").holders]
    fill()
    with pytest.raises(StoreUnavailable, match=r"OOM.*raise its maxmemory"):
        store.apply("key", operation)
    snapshot = store.inspect("key")
    assert ([owner.id for owner in snapshot.holders], snapshot.waiting) == (owners, 0)
    fill(False)
    store.apply("key", operation)


def test_heartbeat_and_reaper_go_on(store: RedisStore, fill: Callable[..., None]) -> None:
    assert store.keep_namespace("broker", LIFE) == "broker"
    store.apply("key", take("a", limit=2))
    store.apply("key", take("b", limit=2))
    store.apply("line", take("a"))
    store.apply("line", take("b"))
    fill()
    leases = [(key, Renew(id, f"token of {id}", 2 * LIFE)) for key, id in [("key", "a"), ("key", "b")]]
    assert store.renew([*leases, ("line", Renew("a", "token of a", 2 * LIFE))]) == [True] * 3
    assert all(owner.remaining > LIFE for owner in store.inspect("key").holders)
    worker = WorkerRecord(1, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)
    assert store.keep_namespace("broker", LIFE, worker) == "broker"
    assert store.workers() == {1: [worker]}
    store.check()
    store.clock = lambda: 2_000_000_000 * SECOND
    assert [(wake.key, wake.id) for wake in store.reap().wake] == [("line", "b")]


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_line_that_has_filled_the_memory_is_done_in_its_order(
    store: Store, fill: Callable[..., None], acks_late: bool
) -> None:
    store.apply("line", take("0"))
    for number in range(1, 6):
        store.apply("line", take(str(number)))
    fill()
    order, holder = [], "0"
    while wakes := store.apply("line", give(holder)).wake:
        holder = wakes[0].id
        order.append(holder)
        promoted = Acquire(
            holder, f"token of {holder}", 60 * SECOND, promoted=wakes[0].epoch, acks_late=acks_late
        )
        assert isinstance(store.apply("line", promoted).answer, Granted)
    assert order == ["1", "2", "3", "4", "5"]
    assert store.apply("line", Release("5", "token of 5")).answer == Applied(False)
    assert not store.inspect("line").holders
