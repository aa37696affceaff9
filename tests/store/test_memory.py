"""What only the memory store has: data in this process, shared by URL."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from celery_exclusive.core.operations import Applied, Granted, Held, Release, Remove, Stale
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.document_store import Change
from celery_exclusive.stores.memory import MemoryStore
from tests.store.operations import take

START = 1_700_000_000 * SECOND
numbers = count()


@pytest.fixture
def store() -> MemoryStore:
    opened = open_store(f"memory://test-{next(numbers)}")
    assert isinstance(opened, MemoryStore)
    opened.clock = lambda: START
    return opened


def test_stores_of_one_url_and_prefix_are_one() -> None:
    open_store("memory://shared").apply("key", take("a"))
    assert isinstance(open_store("memory://shared").apply("key", take("b", message=None)).answer, Held)
    assert isinstance(open_store("memory://other").apply("key", take("b")).answer, Granted)
    assert isinstance(open_store("memory://shared", prefix="y").apply("key", take("b")).answer, Granted)


def test_a_key_without_holder_and_line_leaves_nothing(store: MemoryStore) -> None:
    store.apply("key", take("a"))
    store.apply("key", Release("a", "token of a"))
    assert not store._memory.keys
    assert not list(store.scan())


def test_dead_leases_and_tombstones_are_cleared_by_the_reaper(store: MemoryStore) -> None:
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    store.apply("key", Remove("b"))
    store.clock = lambda: START + 661 * SECOND  # a minute more, in case the clock is set back
    store.reap()
    assert not store._memory.keys


def test_a_forgotten_key_keeps_its_tombstones(store: MemoryStore) -> None:
    for operation in (take("a"), take("b"), Remove("b")):
        store.apply("key", operation)
    store.forget("key")
    assert not list(store.scan())
    assert store.apply("key", replace(take("b"), redelivered=True)).answer == Stale()
    assert isinstance(store.apply("key", take("c")).answer, Granted)


def test_two_reapers_do_not_come_at_once(store: MemoryStore) -> None:
    assert store.reap(every=SECOND).answer == Applied(True)
    assert store.reap(every=SECOND).answer == Applied(False)
    assert store.reap().answer == Applied(True)


def test_a_clock_that_went_back_does_not_stop_the_reaper(store: MemoryStore) -> None:
    store.reap()
    store.clock = lambda: START - 3600 * SECOND
    assert store.reap(every=SECOND).answer == Applied(True)


def test_scan_names_the_keys_in_use(store: MemoryStore) -> None:
    for key in ("feed:1", "feed:2", "team:1"):
        store.apply(key, take("a"))
    assert sorted(store.scan("feed:")) == ["feed:1", "feed:2"]


def test_a_cleared_store_has_another_epoch_and_growing_fences(store: MemoryStore) -> None:
    before = store.apply("key", take("a")).answer
    epoch = store._memory.epoch
    store.clear()
    after = store.apply("key", take("b")).answer
    assert isinstance(before, Granted)
    assert isinstance(after, Granted)
    assert after.fence > before.fence
    assert store._memory.epoch != epoch


class Overtaken(MemoryStore):
    """A store whose first write with a message to wake is followed at once by the removal of that message."""

    def swap(self, key: str, version: int, change: Change) -> bool:
        is_written = super().swap(key, version, change)
        if change.transition.wake:
            MemoryStore(self.url).apply(key, Remove("b"))
        return is_written


@pytest.mark.promise(
    "A store that runs `step` answers with the messages of the instant of its step, whatever is done next",
    broke="messages read after the swap",
)
def test_a_message_that_is_removed_after_the_step_is_woken_with_what_it_was() -> None:
    store = Overtaken(f"memory://{next(numbers)}")
    store.apply("key", take("a"))
    store.apply("key", take("b"))
    (wake,) = store.apply("key", Release("a", "token of a")).wake
    assert (wake.id, wake.message) == ("b", b"message")
    assert store.inspect("key").waiting == 0


@pytest.mark.promise(
    "The memory store reads its clock when no other thread can change its data",
    broke="the clock read before the lock is taken",
)
def test_the_clock_is_read_under_the_lock(store: MemoryStore) -> None:
    was_locked = []

    def clock() -> int:
        was_locked.append(store._memory.lock.locked())
        return 1

    store.clock = clock
    store.apply("key", take("a"))
    store.reap()
    assert all(was_locked)
