"""A Redis server that restarts from a snapshot has older data: that is noticed, and told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import install
from celery_exclusive import lock as lock_
from celery_exclusive.core.operations import Acquire, Granted, Held, Parked
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Store, open_store
from tests.leases import is_lost
from tests.servers import RedisServer
from tests.store.forks import in_a_fork
from tests.store.operations import LIFE, take


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def open_(server: RedisServer) -> Iterator[Callable[[], Store]]:
    """Opens a store as another process would."""
    server.restart(keep_data=False)
    opened = []

    def opens() -> Store:
        opened.append(open_store(server.url))
        return opened[-1]

    yield opens
    for store in opened:
        store.close()


def save(server: RedisServer) -> None:
    with server.client() as redis:
        redis.save()


def restart(server: RedisServer) -> None:
    """Restart it after a crash, from its last snapshot."""
    server.restart(keep_data=True)


def fence_of(store: Store, id: str, key: str = "key") -> int:
    answer = store.apply(key, take(id)).answer
    assert isinstance(answer, Granted)
    return answer.fence


@pytest.mark.promise(
    "A Redis that is back with older data, from a snapshot: a lost lease and a lost place in line are "
    "noticed, also after others were granted leases; by the parent of the process that was granted it; "
    "once; not after a restart without a loss",
    name="older data",
    broke=(
        "fences of grants, or of places in line, not remembered; compared with the present fence; children "
        "that keep them to themselves; told by each process; fences of the present run compared"
    ),
)
def test_a_lost_grant_is_told_although_others_were_granted_leases_since(
    server: RedisServer, open_: Callable[[], Store]
) -> None:
    first, newcomer = open_(), open_()
    fence_of(first, "a", "before")
    epoch = first.epoch()
    save(server)
    lost = fence_of(first, "a")
    restart(server)
    assert fence_of(newcomer, "b") > lost
    assert newcomer.epoch() == epoch
    assert isinstance(first.apply("key", take("a", message=None)).answer, Held)
    assert first.epoch() == newcomer.epoch() != epoch
    assert first.inspect("before").holders


@pytest.mark.promise(
    "A loss of data is reported once, also by a server that refuses writes at first",
    broke="red before: the caller took the new run for the one that had granted its fence",
)
@pytest.mark.parametrize("setting", ["min-replicas-to-write", "maxmemory"])
def test_a_lost_grant_is_told_once_though_the_server_could_note_nothing_at_first(
    server: RedisServer, open_: Callable[[], Store], setting: str
) -> None:
    store = open_()
    fence_of(store, "a", "before")
    epoch = store.epoch()
    save(server)
    lost = fence_of(store, "a")
    restart(server)
    with server.client() as redis:
        redis.config_set(setting, 1)
        with pytest.raises(StoreUnavailable):
            store.apply("key", take("b"))
        redis.config_set(setting, 0)
    assert fence_of(store, "b") > lost
    told = store.epoch()
    assert told != epoch
    save(server)
    restart(server)
    fence_of(store, "c", "other key")
    assert store.epoch() == open_().epoch() == told


@pytest.mark.proves("older data")
def test_a_lost_place_in_line_is_told(server: RedisServer, open_: Callable[[], Store]) -> None:
    first, second = open_(), open_()
    fence_of(first, "a")
    epoch = first.epoch()
    save(server)
    assert isinstance(second.apply("key", take("b")).answer, Parked)
    restart(server)
    first.reap()
    assert first.epoch() == epoch
    second.reap()
    assert first.epoch() != epoch


@pytest.mark.proves("older data")
def test_a_loss_is_told_once(server: RedisServer, open_: Callable[[], Store]) -> None:
    stores = [open_() for _ in range(3)]
    epoch = stores[0].epoch()
    save(server)
    for store in stores:
        fence_of(store, "a", str(id(store)))
    restart(server)
    told = {store.epoch() for store in stores}
    for store in stores:
        store.close()  # they connect again
        told.add(store.epoch())
    assert len(told - {epoch}) == 1


@pytest.mark.proves("older data")
def test_a_restart_that_lost_nothing_is_no_loss(server: RedisServer, open_: Callable[[], Store]) -> None:
    store, other = open_(), open_()
    epoch = store.epoch()
    fences = [fence_of(store, "a")]
    for _ in range(2):
        save(server)
        restart(server)
        fences.append(fence_of(other, "b", str(len(fences))))
        other.close()  # it connects again, to the run that granted it
        assert other.inspect("key").holders
        assert store.epoch() == epoch
    assert fences == sorted(fences)


@pytest.mark.proves("older data")
def test_a_parent_tells_what_its_child_was_granted(server: RedisServer, open_: Callable[[], Store]) -> None:
    parent = open_()
    epoch = parent.epoch()
    save(server)
    assert in_a_fork(lambda: bool(fence_of(parent, "a")))
    restart(server)
    assert parent.epoch() != epoch


@pytest.mark.proves("older data")
def test_the_offers_of_before_are_none_afterwards(server: RedisServer, open_: Callable[[], Store]) -> None:
    store = open_()
    epoch = store.epoch()
    save(server)
    fence_of(store, "a")
    restart(server)
    assert isinstance(fence_of(store, "a"), int)
    promoted = Acquire("b", "t", LIFE, promoted=epoch)
    assert isinstance(store.apply("key", promoted).answer, Held)


@pytest.mark.proves("restored after older data")
def test_fences_go_on_above_the_lost_ones_though_the_clock_is_behind(
    server: RedisServer, open_: Callable[[], Store]
) -> None:
    store: Any = open_()
    store.epoch()
    save(server)
    now = 2_000_000_000_000_000
    store.clock = lambda: now
    lost = fence_of(store, "a")
    restart(server)
    store.clock = lambda: now - 3600_000_000
    assert fence_of(store, "b") > lost


@pytest.mark.proves("restored after older data")
def test_a_lease_that_was_lost_is_restored_unless_its_key_has_a_new_holder(
    server: RedisServer, open_: Callable[[], Store]
) -> None:
    app: Any = install(Celery("locks", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store=server.url)
    kept, free, taken = (lock_(name, app=app, ttl=60, wait=0) for name in ("kept", "free", "taken"))
    with closing(app._celery_exclusive.store):
        assert kept.acquire()
        save(server)
        assert free.acquire()
        assert taken.acquire()
        restart(server)
        assert fence_of(open_(), "b", taken.lease.key) > taken.lease.fence
        kept.lease.check()
        free.lease.check()
        assert free.locked()
        assert is_lost(taken.lease)
        for each in (kept, free, taken):
            each.release()
    app.close()


@pytest.mark.proves("older data")
def test_a_server_that_hides_its_run_or_is_full_is_asked_all_the_same(
    server: RedisServer, open_: Callable[[], Store]
) -> None:
    with server.client() as redis:
        redis.execute_command("ACL SETUSER shy on >pw ~* +@all -info")
    with closing(open_store(server.url.replace("//", "//shy:pw@"))) as shy:
        fence_of(shy, "a")
        shy.close()
        assert shy.inspect("key").holders
    with server.client() as redis:
        redis.config_set("maxmemory", 1)
    with closing(open_()) as store:
        assert store.inspect("key").holders
