"""What a lease says of itself while its store is there, and while it is not."""

from __future__ import annotations

import time

import pytest

from celery_exclusive import Lease, LeaseLost
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.stores.base import Store, open_store

NOBODY = "redis://127.0.0.1:1/0"


def lease(store: Store, *, certain_for: float) -> Lease:
    return Lease("key", 17, 30, store, "a", "token", 1, time.monotonic() + certain_for)


def test_a_lease_that_stands_passes_its_check_and_one_that_was_released_does_not() -> None:
    store = open_store("memory://test_lease")
    store.apply("key", Acquire("a", "token", 30 * SECOND))
    mine = lease(store, certain_for=-1)
    mine.check()
    store.apply("key", Release("a", "token"))
    with pytest.raises(LeaseLost, match=r"key \(fence 17\) is lost: not renewed for 30 s.*Stop this work"):
        mine.check()


def test_a_lease_is_sure_of_itself_without_a_store_only_until_its_ttl_has_passed() -> None:
    store = open_store(NOBODY)
    lease(store, certain_for=60).check()
    with pytest.raises(LeaseLost, match=r"key cannot be confirmed: .*does not answer"):
        lease(store, certain_for=-1).check()
