"""Fences, renewals and releases."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import (
    Applied,
    Granted,
    Parked,
    Release,
    Renew,
    Requeue,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.step import Transition
from tests.unit.stepping import START, TTL, Key

# Fence.


def test_a_fence_is_the_time_of_its_grant(key: Key):
    key.acquire("a")
    key.release("a")
    key.now += SECOND
    assert key.acquire("b") == Granted(START + SECOND)


@pytest.mark.proves("fence grows")
def test_the_fence_grows_even_if_the_clock_goes_back(key: Key):
    key.acquire("a")
    key.release("a")
    key.now -= 500 * SECOND
    assert key.acquire("b") == Granted(START + 1)


def test_two_grants_within_one_microsecond_have_two_fences():
    key = Key(limit=2)
    assert [key.acquire("a"), key.acquire("b")] == [Granted(START), Granted(START + 1)]


# Renew.


def test_renew_keeps_a_lease(key: Key):
    key.acquire("a")
    key.now += 20 * SECOND
    assert key.ask(Renew("a", "A", TTL)) == Applied(True)
    assert key.document.holders[0].expiry == START + 50 * SECOND


def test_renew_never_shortens(key: Key):
    key.acquire("a")
    assert key.ask(Renew("a", "A", SECOND)) == Applied(True)
    assert key.document.holders[0].expiry == START + TTL


def test_renew_revives_an_expired_lease_of_a_key_without_other_requests(key: Key):
    key.acquire("a")
    key.now += TTL
    assert key.ask(Renew("a", "A", TTL)) == Applied(True)
    assert key.document.holders[0].expiry == START + 2 * TTL


def test_renew_never_revives_a_lease_whose_key_another_has_acquired(key: Key):
    key.acquire("a")
    key.now += TTL
    assert isinstance(key.acquire("b"), Granted)
    assert key.ask(Renew("a", "A", TTL)) == Applied(False)


@pytest.mark.parametrize(("id", "token"), [("a", "B"), ("b", "A"), ("b", "B")])
def test_only_the_holder_renews(busy: Key, id: str, token: str):
    before = busy.document
    busy.now += SECOND
    assert busy.ask(Renew(id, token, TTL)) == Applied(False)
    assert busy.document == before


def test_a_renewal_does_not_hide_from_the_reaper_that_an_offer_ran_out():
    key = Key(limit=2)
    for id in "abc":
        key.acquire(id)
    key.release("b")
    offer_until = key.last.due
    key.now += 10 * SECOND
    key.ask(Renew("a", "A", TTL))
    assert key.last.due == offer_until == START + 5 * SECOND


# Release.


def test_release_hands_on_in_the_same_step(busy: Key):
    assert busy.release("a") == Applied(True)
    assert busy.holders == []
    assert busy.last.wake == ("b",)
    assert busy.entries["b"].offer_until == busy.now + 5 * SECOND


@pytest.mark.parametrize(("id", "token"), [("a", "B"), ("x", "X")])
def test_a_release_by_a_stranger_changes_nothing(busy: Key, id: str, token: str):
    before = busy.document
    assert busy.release(id, token) == Applied(False)
    assert busy.last == Transition(before, Applied(False), due=START + TTL)


def test_a_late_finisher_cannot_release_the_next_holder(busy: Key):
    busy.now += TTL
    busy.reap()
    busy.promoted("b")
    assert busy.release("a") == Applied(False)
    assert busy.holders == ["b"]


def test_a_release_after_the_lease_has_expired_takes_the_waiting_copy_along(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.reap(TTL)
    assert busy.release("b") == Applied(False)
    assert busy.tombstones == {"b": "B"}


def test_a_release_before_a_sweep_has_seen_that_the_lease_has_expired_counts(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.now += TTL
    assert busy.release("b") == Applied(True)
    assert busy.tombstones == {"b": "B"}
    assert busy.last.wake == ("c",)


def test_an_unfinished_release_after_the_lease_has_expired_leaves_the_copy_in_line(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.reap(TTL)
    assert busy.release("b", ending="open") == Applied(False)
    assert not busy.tombstones
    assert busy.in_line == ["c", "d", "b"]


def test_a_release_while_another_copy_runs_leaves_that_one_its_lease_and_its_entry(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.reap(TTL)
    for id in "cd":
        busy.promoted(id)
        busy.release(id)
    busy.promoted("b", "B2")
    assert busy.release("b") == Applied(False)
    assert busy.holders == busy.behind == ["b"]
    assert "b" not in busy.tombstones


def test_a_release_alone_keeps_the_lease_while_a_copy_stands_behind(key: Key):
    key.acquire("a")
    key.redelivered("a")
    assert key.ask(Release("a", "A", ending="if_no_copy")) == Applied(False)
    assert key.holders == key.behind == ["a"]
    assert key.release("a") == Applied(True)
    assert key.tombstones == {"a": "A"}


def test_a_release_alone_keeps_the_lease_of_a_redelivered_message(key: Key):
    key.redelivered("a")
    assert key.ask(Release("a", "A again", ending="if_no_copy")) == Applied(False)
    assert key.ask(Release("a", "A again", ending="open")) == Applied(True)


def test_a_release_alone_of_a_message_without_copies_frees_the_key(key: Key):
    key.acquire("a")
    assert key.ask(Release("a", "A", ending="if_no_copy")) == Applied(True)
    assert key.holders == []


def test_a_repeated_release_finds_nothing_and_wakes_no_task(busy: Key):
    busy.release("a")
    assert busy.release("a") == Applied(False)
    assert busy.last.wake == ()


def test_a_task_that_never_waited_leaves_no_tombstone(key: Key):
    key.acquire("a")
    key.release("a")
    assert not key.tombstones


def test_a_task_that_waited_leaves_a_tombstone(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b")
    assert busy.tombstones.keys() == {"b"}


def test_a_redelivered_task_leaves_a_tombstone(key: Key):
    key.redelivered("a", "A")
    key.release("a")
    assert key.tombstones.keys() == {"a"}


def test_a_copy_behind_its_own_run_leaves_with_it_and_a_tombstone_stays(key: Key):
    key.acquire("a")
    key.redelivered("a")
    key.release("a")
    assert key.last.removed == ("a",)
    assert key.tombstones.keys() == {"a"}
    assert not key.messages


def test_an_unfinished_ending_leaves_no_tombstone_and_keeps_the_copy(key: Key):
    key.acquire("a")
    key.redelivered("a")
    key.release("a", ending="open")
    assert not key.tombstones
    assert key.last.wake == ("a",)
    assert isinstance(key.promoted("a"), Granted)


def test_a_task_that_waited_and_ended_unfinished_may_be_redelivered(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b", ending="open")
    assert isinstance(busy.redelivered("b"), Parked)
    assert busy.in_line == ["c", "d", "b"]


def test_a_redelivered_task_keeps_its_place_unless_its_copy_is_here(busy: Key):
    busy.ask(Requeue("a", "A", 2 * TTL))
    assert busy.holders == ["a"]
    assert busy.document.holders[0].phase == "again"
    assert busy.document.holders[0].expiry == START + 2 * TTL
    assert busy.redelivered("a", "A2") == Granted(START)
    busy.release("a", "A2")
    busy.promoted("b")
    busy.ask(Requeue("b", "B", 2 * TTL))
    assert busy.holders == []
    assert busy.in_line == ["c", "d", "b"]


def test_an_early_message_that_ended_unfinished_arrives_anew(busy: Key):
    busy.release("a")
    busy.promoted("b", acks_late=False)
    busy.release("b", ending="open")
    assert isinstance(busy.redelivered("b"), Parked)
    assert busy.in_line == ["c", "d", "b"]
