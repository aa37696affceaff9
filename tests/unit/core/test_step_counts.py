"""What is counted of a line, told of it, and due: each of these changes if one comparison does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_exclusive.core.key_state import FIRST_OFFER, LONGEST_OFFER, OFFERS_IN_LINE
from celery_exclusive.core.operations import (
    AcquireAlone,
    Applied,
    ForceRelease,
    Full,
    Granted,
    Held,
    Parked,
    Reap,
    Remove,
    Requeue,
    Restore,
    Stale,
)
from celery_exclusive.core.records import SECOND, Entry
from tests.unit.stepping import START, TTL, Key, nobody_comes

pytestmark = pytest.mark.promise(
    "Each number and comparison of `core/step.py` and `core/key_state.py` is seen by a test: a mutation (a "
    "comparison, operator, condition, constant or statement changed or left out) turns one red",
    figure=(
        "of 495 mutations, 34 were seen by neither unit tests, kit nor explorer. The tests of this file "
        "see those that make a difference; conditions that made none were dropped. Unseen are two numbers, "
        "8 offers in line and 64 aside"
    ),
)


def run_behind(key: Key, id: str) -> None:
    """Let this id run, with a copy of its message behind it."""
    key.acquire(id)
    assert key.acquire(id, f"{id} again") == Parked(0, key.owners())


def first_steps_aside(key: Key) -> None:
    """The first in line has had its last offer in line, and nobody has come."""
    id, *_ = key.in_line
    key.entries[id] = replace(key.entries[id], offers=OFFERS_IN_LINE, offer_until=key.now)


# Positions.


def test_a_later_entry_does_not_change_the_position_of_an_id_in_line(key: Key):
    key.document = replace(key.document, limit=2)
    run_behind(key, "a")
    key.now += TTL // 2
    key.acquire("b")
    key.acquire("c")
    key.reap(TTL // 2)  # the lease of a has expired, and its copy joins the line
    answer = key.redelivered("c", limit=1)
    assert isinstance(answer, Parked)
    assert answer.position == 1
    assert key.in_line == ["c", "a"]


def test_an_own_place_is_not_ahead_of_itself(busy: Key):
    for id, position in (("c", 2), ("b", 1), ("d", 3)):
        answer = busy.redelivered(id)
        assert isinstance(answer, Parked)
        assert answer.position == position


# Offers, and when the reaper must look again.


def test_while_no_place_is_free_those_aside_are_not_due(key: Key):
    key.acquire("a", limit=1)
    key.entries["b"] = Entry("b", START, START + 1, OFFERS_IN_LINE, "aside")
    key.ask(Reap())
    assert key.last.due == START + TTL
    key.document = replace(key.document, limit=2)
    key.ask(Reap())
    assert key.last.due == START + 1


def test_offers_to_those_aside_are_as_far_apart_as_the_longest_offer(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE - 1)
    assert busy.aside == ["b"]
    busy.now = busy.entries["b"].offer_until
    busy.entries = {"b": busy.entries["b"]}
    busy.ask(Reap())
    assert busy.last.wake == ("b",)
    assert busy.entries["b"].offer_until == busy.now + LONGEST_OFFER * FIRST_OFFER


def test_a_refused_acquire_does_not_change_the_limit_for_the_line(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.document = replace(key.document, limit=2)
    assert isinstance(key.acquire("c", limit=1, message=None), Held)
    assert (key.document.limit, key.last.wake) == (2, ("b",))
    assert isinstance(key.acquire("d", limit=1, max_waiting=1), Full)
    assert key.document.limit == 2


# Who steps aside, and what becomes of it in the same step.


def test_a_task_that_steps_aside_and_leaves_at_once_is_not_reported_as_aside(busy: Key):
    busy.release("a")
    first_steps_aside(busy)
    assert busy.ask(Remove("b")) == Applied(True)
    assert busy.last.aside == ()
    first_steps_aside(busy)
    assert isinstance(busy.redelivered("c"), Granted)
    assert busy.last.aside == ()
    assert busy.behind == ["c"]


def test_a_task_that_steps_aside_is_reported_as_aside(busy: Key):
    busy.release("a")
    first_steps_aside(busy)
    busy.ask(Reap())
    assert busy.last.aside == ("b",)


# Runs and their copies.


def test_an_entry_behind_a_run_says_that_it_was_granted_from_its_offer(busy: Key):
    busy.release("a")
    busy.promoted("b")
    assert busy.entries["b"].offers == 1


def test_a_copy_of_what_runs_is_kept_however_many_wait(busy: Key):
    answer = busy.acquire("a", "A2", max_waiting=3)
    assert isinstance(answer, Parked)
    assert isinstance(busy.acquire("x", max_waiting=3), Full)


def test_a_waiting_task_delivered_without_a_flag_leaves_a_tombstone_when_done(busy: Key):
    busy.release("a")
    assert isinstance(busy.acquire("b", acks_late=False), Granted)
    busy.release("b")
    assert busy.tombstones["b"] == "B"
    assert busy.redelivered("b") == Stale()


# AcquireAlone, Release, ForceRelease, Restore, Reap.


def test_a_key_with_a_line_is_not_granted_to_a_request_for_it_alone(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    assert isinstance(key.ask(AcquireAlone("c", "C", TTL)), Held)
    assert isinstance(key.promoted("b"), Granted)


def test_a_task_that_holds_a_key_and_waits_for_it_stands_behind_itself(key: Key):
    key.acquire("a")
    key.acquire("b")
    assert isinstance(key.ask(AcquireAlone("b", "B", TTL, inherits=("a", "A"))), Granted)
    assert (key.holders, key.in_line, key.behind) == (["b"], [], ["b"])


def test_a_lease_is_kept_for_the_queue_only_if_there_is_one_and_no_copy(key: Key):
    assert key.ask(Requeue("a", "A", SECOND)) == Applied(False)
    key.acquire("a")
    assert key.ask(Requeue("a", "A", SECOND)) == Applied(True)
    assert [holder.phase for holder in key.document.holders] == ["again"]
    other = Key()
    run_behind(other, "a")
    assert other.ask(Requeue("a", "A", SECOND)) == Applied(True)
    assert (other.holders, other.in_line) == ([], ["a"])


def test_a_lease_that_has_ended_cannot_be_broken(key: Key):
    key.acquire("a")
    key.now += TTL
    assert key.ask(ForceRelease("a")) == Applied(False)


def test_a_lease_that_is_there_is_not_restored(key: Key):
    key.document = replace(key.document, limit=3)
    key.acquire("a")
    before = key.document.holders
    assert key.ask(Restore("a", "A", TTL, limit=3)) == Applied(True)
    assert key.ask(Restore("a", "other", TTL, limit=3)) == Applied(False)
    assert key.document.holders == before


def test_a_lease_that_is_restored_brings_its_limit(key: Key):
    assert key.ask(Restore("a", "A", TTL, limit=3)) == Applied(True)
    assert key.document.limit == 3


def test_a_reap_is_answered(key: Key):
    assert key.ask(Reap()) == Applied(True)
