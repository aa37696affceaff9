"""A message that is kept behind its own run, and republished when the run has died."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import (
    AcquireAlone,
    Applied,
    ForceRelease,
    Granted,
    Held,
    Parked,
    Reap,
    Renew,
    Requeue,
    Stale,
)
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import START, TEN_MINUTES, TTL, Key

pytestmark = pytest.mark.proves("recovery", "unique, recovery")


def run(key: Key, id: str = "a") -> None:
    assert isinstance(key.acquire(id, at_once=True, recovers=True), Granted)


def test_a_recovering_run_keeps_its_message_until_it_is_done(key: Key):
    run(key)
    assert key.messages == {"a": b"message of a"}
    assert key.last.due == START + TTL
    assert key.release("a") == Applied(True)
    assert not key.messages
    assert not key.holders
    assert key.last.due is None


def test_an_ordinary_end_of_a_recovering_run_leaves_no_tombstone(key: Key):
    run(key)
    key.release("a")
    assert not key.tombstones


def test_a_dead_run_is_offered_by_the_sweep_after_its_lease(key: Key):
    run(key)
    assert key.reap(TTL) == ("a",)
    assert isinstance(key.promoted("a", "A2", recovers=True), Granted)
    assert key.behind == ["a"]
    key.release("a", "A2")
    assert key.redelivered("a", "A3") == Stale()  # the broker's own copy, an hour later


def test_a_dead_run_joins_the_line_behind_waiting_tasks(key: Key):
    run(key)
    key.acquire("b")
    assert key.reap(TTL) == ("b",)
    assert key.in_line == ["b", "a"]


def test_a_recovered_run_is_recovered_again(key: Key):
    run(key)
    key.reap(TTL)
    key.promoted("a", "A2", recovers=True)
    assert key.reap(TTL) == ("a",)


@pytest.mark.proves("task that kills its worker")
@pytest.mark.parametrize("order", ["published", None])
def test_deaths_are_counted_from_one_recovery_to_the_next(key: Key, order: str | None):
    run(key)
    for deaths in (1, 2, 3):
        key.reap(TTL)
        assert key.entries["a"].deaths == deaths
        key.promoted("a", f"A{deaths}", recovers=True, order=order)


@pytest.mark.proves("task that kills its worker")
@pytest.mark.parametrize("copy", ["the broker's", "of the first offer"])
def test_a_copy_that_does_not_know_of_a_death_waits_for_the_one_that_does(key: Key, copy: str):
    run(key)
    key.reap(TTL)
    if copy == "of the first offer":
        key.promoted("a", "A2", recovers=True)
        key.reap(TTL)
    older = key.promoted if copy == "of the first offer" else key.acquire
    assert isinstance(older("a", "A3", recovers=True, redelivered=True), Parked)
    assert key.last.wake == ("a",)
    assert isinstance(key.promoted("a", "A4", recovers=True), Granted)
    assert key.entries["a"].deaths == (2 if copy == "of the first offer" else 1)


@pytest.mark.proves("task that kills its worker")
def test_an_end_that_is_no_death_is_not_counted(key: Key):
    run(key)
    key.release("a", ending="open")
    assert key.entries["a"].deaths == 0
    key.promoted("a", "A2", recovers=True)
    key.ask(ForceRelease("a"))
    assert "a" not in key.entries


def test_only_a_sweep_that_recovers_ends_a_run_whose_message_is_kept(key: Key):
    run(key)
    key.now += TTL
    assert isinstance(key.acquire("b"), Parked)
    assert isinstance(key.acquire("c", at_once=True), Held)
    key.ask(Reap(recovers_until=key.now - 1))
    assert key.holders == ["a"]
    assert key.last.due == key.now + SECOND
    assert key.reap() == ("b",)


@pytest.mark.proves("dead run without a worker")
def test_without_a_sweep_a_dead_run_ends_after_ten_minutes(key: Key):
    run(key)
    key.now += TTL + TEN_MINUTES - 1
    assert isinstance(key.acquire("b"), Parked)
    key.now += 1
    key.acquire("c")
    assert key.last.wake == ("b",)
    assert key.in_line == ["b", "a", "c"]


@pytest.mark.proves("dead run without a worker")
def test_a_forced_release_of_a_dead_run_lets_it_run_again(key: Key):
    run(key)
    key.now += TTL
    key.ask(ForceRelease("a"))
    assert key.last.wake == ("a",)


def test_a_holder_that_was_cut_off_keeps_its_lease_if_it_renews_before_the_sweep(key: Key):
    run(key)
    key.now += 3 * TTL
    key.acquire("b")
    assert key.ask(Renew("a", "A", TTL)) == Applied(True)
    assert key.reap() == ()
    key.release("a")
    assert key.last.wake == ("b",)


def test_a_request_at_once_is_never_parked(busy: Key):
    assert isinstance(busy.acquire("e", at_once=True, recovers=True), Held)
    assert "e" not in busy.messages


def test_a_parked_message_that_is_granted_is_kept_in_its_newest_form(busy: Key):
    busy.release("a")
    busy.promoted("b", message=b"it has begun", at_once=True, recovers=True)
    assert busy.messages["b"] == b"it has begun"


def test_an_unfinished_end_leaves_its_message_to_the_broker_for_one_offer(key: Key):
    run(key)
    key.release("a", ending="open")
    assert key.last.wake == ()
    assert key.reap(5 * SECOND) == ("a",)


def test_a_redelivered_copy_takes_the_place_of_the_kept_message(key: Key):
    run(key)
    assert isinstance(key.redelivered("a", message=b"again"), Parked)
    assert key.messages["a"] == b"again"
    key.release("a")
    assert key.tombstones == {"a": "A"}
    assert key.redelivered("a", "A3") == Stale()


def test_a_request_without_its_message_keeps_none(key: Key):
    assert isinstance(key.acquire("a", message=None, at_once=True, recovers=True), Granted)
    assert not key.entries


def test_a_forced_release_leaves_a_running_message_to_the_broker(key: Key):
    run(key)
    assert key.ask(ForceRelease("a")) == Applied(True)
    assert not key.messages
    assert not key.holders


# A unique key, which a message holds before its run, and which is released before the end of that.


def run_unique(key: Key, id: str = "a") -> int:
    """Let a message that was published with its key begin; return its fence."""
    published = key.ask(AcquireAlone(id, "its publisher", 100 * TTL, phase="queued"))
    assert isinstance(published, Granted)
    assert key.acquire(id, at_once=True, recovers=True) == published
    return published.fence


def test_a_queued_lease_that_begins_keeps_its_message_and_its_fence(key: Key):
    fence = run_unique(key)
    assert key.messages == {"a": b"message of a"}
    (holder,) = key.document.holders
    assert (holder.fence, holder.may_have_copies) == (fence, False)
    assert key.last.due == START + TTL


def test_the_end_of_a_body_frees_the_key_and_takes_the_kept_message_along(key: Key):
    run_unique(key)
    assert key.release("a", ending="if_no_copy") == Applied(True)
    assert not key.holders
    assert not key.messages
    assert key.last.wake == ()
    assert key.last.due is None
    assert isinstance(key.ask(AcquireAlone("b", "B", TTL, phase="queued")), Granted)


def test_a_message_that_is_redelivered_between_its_body_and_its_end_runs(key: Key):
    """Its result was not stored: there is no tombstone."""
    run_unique(key)
    key.release("a", ending="if_no_copy")
    assert not key.tombstones
    assert isinstance(key.redelivered("a"), Granted)


def test_the_end_of_a_body_leaves_the_key_with_a_run_that_has_copies(key: Key):
    run_unique(key)
    assert isinstance(key.redelivered("a", message=b"again"), Parked)
    assert key.release("a", ending="if_no_copy") == Applied(False)
    assert key.behind == ["a"]
    assert key.release("a") == Applied(True)
    assert key.redelivered("a", "A3") == Stale()


def test_a_late_end_of_a_body_does_not_take_what_waits_to_be_recovered_along(key: Key):
    run_unique(key)
    assert key.reap(TTL) == ("a",)
    assert key.release("a", ending="if_no_copy") == Applied(False)
    assert key.in_line == ["a"]


def test_a_retry_that_inherits_the_lease_takes_over_no_message_of_its_former_run(key: Key):
    fence = run_unique(key)
    retry = AcquireAlone("a2", "its publisher", 100 * TTL, ("a", "A"), phase="again")
    assert key.ask(retry) == Granted(fence)
    assert not key.messages
    assert key.last.removed == ("a",)
    assert key.last.due is None
    assert key.acquire("a2", at_once=True, recovers=True) == Granted(fence)
    assert key.reap(TTL) == ("a2",)


def test_a_copy_that_only_the_store_has_joins_the_line_when_a_retry_inherits_the_lease(key: Key):
    run_unique(key)
    key.redelivered("a", message=b"again")
    key.ask(AcquireAlone("a2", "its publisher", TTL, ("a", "A"), phase="again"))
    assert key.in_line == ["a"]


def test_a_run_that_gives_its_message_back_waits_for_it_in_line_for_one_offer(key: Key):
    run_unique(key)
    assert key.ask(Requeue("a", "A", 100 * TTL)) == Applied(True)
    assert isinstance(key.ask(AcquireAlone("b", "B", TTL, phase="queued")), Held)
    assert isinstance(key.redelivered("a", at_once=True, recovers=True), Granted)
    assert key.behind == ["a"]


def test_a_lease_that_is_taken_over_keeps_the_message_of_the_run(key: Key):
    key.ask(AcquireAlone("b", "its publisher", 100 * TTL, phase="queued"))
    taken = key.acquire("a", takes_over=("b", "queued"), at_once=True, recovers=True)
    assert isinstance(taken, Granted)
    assert key.reap(TTL) == ("a",)
