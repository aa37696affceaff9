"""Copies of one message: which of them runs, and which is stale."""

from __future__ import annotations

from dataclasses import replace

from celery_exclusive.core.operations import (
    Granted,
    Parked,
    Remove,
    Stale,
)
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import TTL, Key

# Stale.


def test_a_promoted_copy_is_stale_when_its_task_has_finished(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b")
    assert busy.promoted("b", "B2") == Stale()
    assert busy.in_line == ["c", "d"]


def test_a_promoted_copy_is_stale_while_another_copy_runs(busy: Key):
    busy.release("a")
    busy.promoted("b")
    assert busy.promoted("b", "B2") == Stale()
    assert busy.behind == ["b"]


def test_a_promoted_copy_is_stale_while_another_copy_runs_even_with_one_more_in_line(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.redelivered("b", "B2")
    assert busy.promoted("b", "B3", message=b"late") == Stale()
    assert busy.messages["b"] == b"message of b"


def test_a_tombstone_does_not_stop_a_redelivery_that_has_an_entry_or_a_run(key: Key):
    key.tombstones |= {"a": "", "b": ""}
    key.acquire("a")
    key.acquire("b")
    assert isinstance(key.redelivered("a"), Parked)
    assert isinstance(key.redelivered("b"), Parked)


def test_a_redelivered_copy_is_stale_when_its_task_has_finished(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b")
    assert busy.redelivered("b") == Stale()
    assert busy.promoted("b", "B2", redelivered=True) == Stale()


def test_a_fresh_message_asks_no_tombstone(key: Key):
    key.tombstones["a"] = "another"
    assert isinstance(key.acquire("a"), Granted)


def test_a_request_that_comes_after_its_own_repetition_has_finished_is_stale(busy: Key):
    """A reply was lost, or so it seemed: the first request is on its way for longer than the whole run."""
    busy.release("a")
    busy.promoted("b")
    busy.release("b")
    assert busy.acquire("b", message=None) == Stale()
    assert busy.acquire("b") == Stale()
    assert isinstance(busy.acquire("b", "B2"), Parked)


def test_a_redelivered_promoted_copy_waits_for_a_new_one_when_its_run_died(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.now += TTL
    busy.reap()
    for id in "cd":
        busy.promoted(id)
        busy.release(id)
    answer = busy.promoted("b", "B2", redelivered=True)
    assert isinstance(answer, Parked)
    assert [(owner.id, owner.phase) for owner in answer.by] == [("b", "offered")]
    assert busy.last.wake == ("b",)
    assert isinstance(busy.promoted("b", "B3"), Granted)


def test_a_copy_promoted_before_the_store_lost_its_data_is_a_redelivered_one(key: Key):
    assert isinstance(key.acquire("a", promoted="yesterday"), Granted)
    assert key.document.holders[0].may_have_copies
    key.release("a")
    assert key.acquire("a", "A2", promoted="yesterday") == Stale()


# A copy behind its own run.


def test_a_redelivery_stands_behind_its_own_run_and_lets_others_pass(key: Key):
    key.acquire("a")
    key.redelivered("a")
    key.acquire("b")
    key.acquire("x", limit=2)
    assert key.last.wake == ("b",)
    assert isinstance(key.promoted("b", limit=2), Granted)


def test_a_redelivery_takes_over_when_its_own_run_dies(key: Key):
    key.acquire("a")
    key.redelivered("a")
    assert key.reap(TTL) == ("a",)
    assert isinstance(key.promoted("a", "A2"), Granted)


def test_a_copy_of_a_late_message_stays_until_its_run_is_done(busy: Key):
    busy.release("a")
    assert isinstance(busy.promoted("b"), Granted)
    assert (busy.in_line, busy.behind) == (["c", "d"], ["b"])
    assert busy.messages["b"] == b"message of b"
    busy.release("b")
    assert busy.last.removed == ("b",)
    assert busy.tombstones == {"b": "B"}


def test_a_copy_of_a_late_message_joins_the_line_anew_when_its_run_dies(busy: Key):
    busy.release("a")
    busy.promoted("b")
    assert busy.reap(TTL) == ("c",)
    assert busy.in_line == ["c", "d", "b"]
    for id in "cd":
        busy.promoted(id)
        busy.release(id)
    assert busy.last.wake == ("b",)
    assert isinstance(busy.promoted("b", "B2"), Granted)


def test_a_message_that_the_broker_delivers_again_runs_before_its_copy_is_offered(busy: Key):
    for id in "cd":
        busy.ask(Remove(id))
    busy.release("a")
    busy.promoted("b")
    busy.release("b", ending="open")
    assert busy.last.wake == ()
    assert busy.reap(5 * SECOND) == ("b",)
    assert isinstance(busy.redelivered("b", "B2"), Granted)
    busy.release("b", "B2")
    assert not busy.entries


def test_a_copy_of_a_late_message_is_redelivered_after_an_unfinished_run(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b", ending="open")
    assert busy.in_line == ["c", "d", "b"]


def test_copies_of_several_runs_that_died_join_the_line_in_their_old_order(key: Key):
    key.document = replace(key.document, limit=2)
    for id in "abcd":
        key.acquire(id)
    key.release("a")
    key.release("b")
    for id in "dc":
        key.promoted(id)
    key.acquire("e")
    key.reap(TTL)
    assert key.in_line == ["e", "c", "d"]


def test_an_early_message_has_no_copy_behind_its_run(busy: Key):
    busy.release("a")
    assert isinstance(busy.promoted("b", acks_late=False), Granted)
    assert (busy.in_line, busy.behind) == (["c", "d"], [])
    assert "b" not in busy.messages


def test_an_early_message_that_has_begun_does_not_begin_again_by_an_offer(busy: Key):
    busy.release("a")
    busy.promoted("b", acks_late=False)
    assert busy.promoted("b", "B2", acks_late=False) == Stale()
    busy.reap(TTL)
    assert busy.promoted("b", "B2", acks_late=False) == Stale()


def test_an_early_message_that_has_begun_begins_again_when_the_broker_redelivers_it(busy: Key):
    busy.release("a")
    busy.promoted("b", acks_late=False)
    busy.reap(TTL)
    assert isinstance(busy.redelivered("b", acks_late=False), Parked)


def test_a_repeated_request_of_an_early_message_is_granted_after_its_lease_has_expired(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    key.promoted("b", acks_late=False)
    key.reap(TTL)
    assert isinstance(key.acquire("b", promoted="today", redelivered=True, acks_late=False), Granted)


def test_a_promoted_copy_without_entry_lease_and_tombstone_runs(key: Key):
    assert isinstance(key.promoted("a"), Granted)
    key.release("a")
    assert key.tombstones == {"a": "A"}


def test_a_promoted_copy_without_entry_waits_behind_the_run_of_another_copy(key: Key):
    key.acquire("a")
    assert key.promoted("a", "A2") == Parked(0, key.last.answer.by)
    assert key.behind == ["a"]


def test_a_copy_behind_makes_the_reaper_watch_its_run(key: Key):
    key.acquire("a")
    key.redelivered("a")
    assert key.last.due == key.now + TTL


def test_a_copy_behind_its_run_is_not_counted_in_line(busy: Key):
    busy.release("a")
    busy.promoted("b")
    assert busy.acquire("e").position == 3
    assert busy.acquire("f", max_waiting=3).waiting == 3
    assert busy.redelivered("b", "B3", max_waiting=1).position == 0


def test_a_copy_whose_run_died_counts_again_for_those_behind(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.reap(TTL)
    assert busy.acquire("e").position == 4
    assert busy.in_line == ["c", "d", "b", "e"]


def test_a_copy_whose_run_died_gets_a_new_place_when_it_is_redelivered(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.reap(TTL)
    assert busy.redelivered("b", "B2").position == 3


def test_a_redelivered_message_joins_as_its_copy_in_line_does(key: Key):
    key.acquire("a")
    key.acquire("b", message=b"a duplicate of a", joins=True)
    assert isinstance(key.redelivered("b", "B2", message=b"as it came"), Parked)
    assert key.messages["b"] == b"a duplicate of a"
    key.release("a")
    granted = key.redelivered("b", "B2")
    assert isinstance(granted, Granted)
    assert granted.after == "a"


def test_a_message_whose_lease_has_expired_goes_before_those_that_join_it(key: Key):
    key.acquire("a")
    key.acquire("b", message=b"a duplicate of a", joins=True)
    key.now += TTL
    assert isinstance(key.acquire("a", "A2"), Granted)
