"""What a lease says of itself while its store is there, while it is not, and when it has lost its data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Lease, LeaseLost, Superseded
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Acquire, Release, Remove
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.keeper import Keeper, Known, restore
from celery_exclusive.services import PublishingStore
from celery_exclusive.stores.base import Store, Wake, open_store
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.system.deadline import at_most

NOBODY = "redis://127.0.0.1:1/0"
OURS = Acquire("a", "token", 30 * SECOND)
LATER = float("inf")
"""When a heartbeat looked that has beaten since the grant."""


@pytest.fixture
def store() -> Store:
    store = MemoryStore("memory://test_lease", prefix="cx", offer=5 * SECOND, tombstone_ttl=600 * SECOND)
    store.clear()
    return store


def lease(
    store: Any,
    *,
    certain_for: float,
    known: Known | None = None,
    id: str = "a",
    may_be_superseded: bool = False,
) -> Lease:
    until, claim = time.monotonic() + certain_for, Claim("key", id, "token", 30 * SECOND)
    return Lease(17, claim, store, until, lambda: known, may_be_superseded)


def test_a_lease_that_stands_passes_its_check_and_one_that_was_released_does_not(store: Store) -> None:
    store.apply("key", OURS)
    mine = lease(store, certain_for=-1)
    mine.check()
    store.apply("key", Release("a", "token"))
    with pytest.raises(LeaseLost, match=r"key \(fence 17\) is lost: not renewed for 30 s.*stop this work"):
        mine.check()


@pytest.mark.proves("paused holder")
def test_a_lease_is_sure_of_itself_without_a_store_only_until_its_ttl_has_passed() -> None:
    store = open_store(NOBODY)
    lease(store, certain_for=60).check()
    with pytest.raises(LeaseLost, match=r"key cannot be confirmed: .*does not answer"):
        lease(store, certain_for=-1).check()


@pytest.mark.proves("check restores a lease")
@pytest.mark.parametrize(("at", "certain_for"), [(0, 60), (LATER, -1)], ids=["young", "old"])
def test_a_check_restores_a_lease_that_the_store_has_lost_with_its_data(
    store: MemoryStore, at: float, certain_for: float
) -> None:
    store.apply("key", OURS)
    mine = lease(store, certain_for=certain_for, known=Known(store.epoch(), at))
    store.clear()
    mine.check()
    assert [owner.id for owner in store.inspect("key").holders] == ["a"]


@pytest.mark.proves("check restores a lease")
def test_a_restored_lease_is_sure_of_itself_without_a_store_until_its_ttl_has_passed(
    store: MemoryStore,
) -> None:
    store.apply("key", OURS)
    mine = lease(store, certain_for=-1, known=Known(store.epoch(), LATER))
    store.clear()
    mine.check()
    mine._store = open_store(NOBODY)
    mine.check()


@pytest.mark.proves("check restores a lease")
def test_a_check_restores_no_lease_that_has_merely_expired(store: MemoryStore) -> None:
    before = Known(store.epoch(), LATER)
    mine = lease(store, certain_for=60, known=before)
    with pytest.raises(LeaseLost):
        mine.check()
    store.clear()  # too late
    with pytest.raises(LeaseLost):
        mine.check()


@pytest.mark.proves("check restores a lease")
def test_a_check_restores_no_lease_that_may_have_been_granted_after_the_loss_and_has_expired(
    store: MemoryStore,
) -> None:
    mine = lease(store, certain_for=-1, known=Known(store.epoch(), 0))
    store.clear()
    with pytest.raises(LeaseLost):
        mine.check()
    assert store.inspect("key").holders == ()


@pytest.mark.proves("check restores a lease")
def test_a_check_restores_no_lease_whose_key_has_a_new_holder(store: MemoryStore) -> None:
    mine = lease(store, certain_for=60, known=Known(store.epoch(), LATER))
    store.clear()
    store.apply("key", Acquire("b", "another", 30 * SECOND))
    with pytest.raises(LeaseLost):
        mine.check()
    store.apply("key", Release("b", "another"))
    with pytest.raises(LeaseLost):  # it has been told, and may have stopped
        mine.check()
    assert store.inspect("key").holders == ()


@pytest.mark.promise(
    "`lease.check()` raises when the store has refused the lease, although it does not answer the next "
    "question",
    broke="red before",
)
def test_a_check_believes_a_store_that_says_no_though_it_does_not_answer_the_next_question(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lease(store, certain_for=60, known=Known(store.epoch(), LATER))
    store.clear()
    store.apply("key", Acquire("b", "another", 30 * SECOND))
    monkeypatch.setattr(store, "epoch", _fail)
    with pytest.raises(LeaseLost):
        mine.check()


@pytest.mark.proves("silent node")
def test_a_beat_of_a_keeper_waits_for_the_epoch_only_until_the_next_one_is_due(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lease(store, certain_for=60, known=Known(store.epoch(), LATER))
    waits, epoch = list[float](), store.epoch
    monkeypatch.setattr(store, "epoch", lambda: waits.append(at_most(600)) or epoch())
    Keeper(store).beat([mine], mine.ttl / RENEWALS_PER_TTL)
    assert 0 < waits[-1] <= mine.ttl / RENEWALS_PER_TTL


@pytest.mark.proves("check restores a lease")
def test_a_check_of_a_lease_that_was_released_puts_nothing_back(store: MemoryStore) -> None:
    mine = lease(store, certain_for=60, known=Known(store.epoch(), LATER))
    mine.end()
    store.clear()
    with pytest.raises(LeaseLost):
        mine.check()
    assert store.inspect("key").holders == ()


@pytest.mark.proves("check restores a lease")
def test_a_lease_released_while_it_is_restored_is_released_again_and_wakes_the_next(
    store: MemoryStore, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[Wake] = []
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    monkeypatch.setattr(services.courier, "follow_up", lambda reply: woken.extend(reply.wake))
    publishing: Any = PublishingStore(store, services)
    mine = lease(publishing, certain_for=60, known=Known(store.epoch(), LATER))
    store.clear()
    monkeypatch.setattr(store, "apply", _then(store.apply, lambda: _end_and_park(mine, store)))
    assert restore(publishing, mine)
    assert store.inspect("key").holders == ()
    assert [wake.id for wake in woken] == ["next"]


@pytest.fixture(params=["memory", "redis"])
def superseding(request: pytest.FixtureRequest, store: MemoryStore) -> Store:
    return store if request.param == "memory" else open_store(request.getfixturevalue("redis_url"))


def join_line(store: Store, id: str, *, replaces: bool = True) -> None:
    store.apply("key", Acquire(f"{id}/p", id, 30 * SECOND, message=b"{}", replaces=replaces))


@pytest.mark.proves("supersede")
def test_a_lease_is_superseded_by_a_newer_call_while_that_waits(superseding: Store) -> None:
    superseding.apply("key", replace(OURS, id="a/p"))
    mine = lease(superseding, certain_for=60, id="a/p", may_be_superseded=True)
    superseding.apply("key", Acquire("a/q", "copy", 30 * SECOND, message=b"{}", replaces=True))
    assert not mine.superseded  # for a copy of its own message
    join_line(superseding, "b")
    assert not mine.superseded  # its last look is not a second old
    mine._looked_at -= 1
    with pytest.raises(Superseded, match="the newer task b waits for lock key, and supersedes this run"):
        mine.check()
    join_line(superseding, "c")
    assert mine.newer_call(every=0) == "c"
    superseding.apply("key", Remove("c/p"))
    assert (mine.superseded, mine.newer_call()) == (True, "c")  # its last look is not a second old
    mine._looked_at -= 1
    assert (mine.superseded, mine.newer_call()) == (False, None)
    mine.check()


@pytest.mark.proves("supersede")
def test_a_lease_with_a_silent_store_or_another_option_is_not_superseded(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not lease(open_store(NOBODY), certain_for=60, may_be_superseded=True).superseded
    store.apply("key", OURS)
    join_line(store, "b")
    monkeypatch.setattr(store, "inspect", _fail)
    other = lease(store, certain_for=60)
    assert not other.superseded
    other.check()


def _fail() -> str:
    raise StoreUnavailable("it does not answer")


def _then(call: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """The same call; once it is done the first time, something happens."""
    acts = [act]

    def calling(*args: Any) -> Any:
        result = call(*args)
        if acts:
            acts.pop()()
        return result

    return calling


def _end_and_park(mine: Lease, store: MemoryStore) -> None:
    mine.end()
    store.apply("key", Acquire("next", "another", 30 * SECOND, message=b"message"))
