"""What a delivery does with its unique key, where no race can be arranged with real workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Granted
from celery_exclusive.leases.claim import Claim
from celery_exclusive.worker.delivery import Delivery, UniqueClaim
from celery_exclusive.worker.unique import UniqueExecution

CLAIM = Claim("u:k", "id/p", "p", 30 * SECOND)
QUEUED = 1000 * SECOND


class Patience:
    """One without limits."""

    def rest(self) -> None: ...


@pytest.fixture
def store(app: Celery) -> Any:
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    yield store
    store.clear()


@pytest.fixture
def unique(app: Celery, store: Any) -> UniqueExecution:
    """Of a message that its publisher has taken the key for, and that runs."""
    stored: Any = None
    claim = UniqueClaim(CLAIM, "finished", QUEUED, None, is_taken=True)
    delivery = Delivery("id/p", "t", None, claim, None, False, None, None, False, True, {}, ("id",), stored)
    patience: Any = Patience()
    store.apply(CLAIM.key, CLAIM.own(CLAIM.ttl, "running"))
    return UniqueExecution(
        app._celery_exclusive,  # type: ignore[attr-defined]
        delivery,
        claim,
        patience=patience,
        ask=lambda key, operation: store.apply(key, operation).answer,
    )


def left(store: Any) -> float:
    """Seconds until the key is free."""
    return max((owner.remaining / SECOND for owner in store.inspect(CLAIM.key).holders), default=0)


@pytest.mark.parametrize("error", [Reject(requeue=True), MemoryError()])
def test_a_message_that_comes_again_keeps_the_key_for_as_long_as_it_may_be_queued(
    unique: UniqueExecution, store: Any, error: Exception
) -> None:
    unique.end(error)
    assert 30 < left(store) <= 1000


@pytest.mark.parametrize("error", [None, KeyError(), Reject(requeue=False)])
def test_a_body_that_has_ended_releases_the_key(
    unique: UniqueExecution, store: Any, error: Exception | None
) -> None:
    unique.end(error)
    assert left(store) == 0
    assert not unique.may_hold


def test_a_process_that_ends_leaves_it_to_whoever_sees_that(unique: UniqueExecution, store: Any) -> None:
    unique.end(SystemExit())
    assert 0 < left(store) <= 30
    assert unique.may_hold


def test_a_parked_delivery_keeps_the_key_and_does_not_revive_a_released_one(
    unique: UniqueExecution, store: Any
) -> None:
    unique.wait()
    assert 30 < left(store) <= 1000
    (holder,) = store.inspect(CLAIM.key).holders
    assert holder.phase == "again"
    store.apply(CLAIM.key, CLAIM.release(done=False))
    unique.wait()
    assert left(store) == 0


def test_who_waits_leaves_the_key_to_another_delivery_that_runs(unique: UniqueExecution, store: Any) -> None:
    other = replace(CLAIM, token="of the other delivery")
    store.apply(CLAIM.key, other.own(CLAIM.ttl, "running"))
    unique.wait()
    unique.end(None)
    (holder,) = store.inspect(CLAIM.key).holders
    assert (holder.phase, left(store) <= 30) == ("running", True)


@pytest.mark.parametrize("is_in", [False, True])
def test_a_delivery_whose_key_went_to_a_queued_task_runs_before_it(
    unique: UniqueExecution, store: Any, is_in: bool
) -> None:
    unique.is_in = is_in
    store.apply(CLAIM.key, CLAIM.release(done=False))
    owner = replace(CLAIM, id="owner/p", token="p")
    store.apply(CLAIM.key, owner.own(QUEUED, "queued"))
    assert isinstance(unique.start(), Granted)
    (holder,) = store.inspect(CLAIM.key).holders
    assert holder.id == CLAIM.id
    unique.end(None)
    assert not store.inspect(CLAIM.key).holders


@pytest.mark.parametrize("phase", ["running", "again", "period"])
def test_a_delivery_whose_key_went_to_a_task_that_runs_or_will_run_does_not_run(
    unique: UniqueExecution, store: Any, phase: Any
) -> None:
    store.apply(CLAIM.key, CLAIM.release(done=False))
    owner = replace(CLAIM, id="owner/p", token="t")
    store.apply(CLAIM.key, owner.own(QUEUED, phase))
    held = unique.start()
    assert held
    assert held.by[0].id == owner.id
