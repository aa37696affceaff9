"""Copies of one message: which of them runs, and which is stale."""

from __future__ import annotations

from dataclasses import replace

from celery_exclusive.core.operations import (
    Granted,
    Parked,
    Stale,
)
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
    assert "b" not in busy.messages


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


def test_a_redelivered_promoted_copy_runs_when_its_run_died(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.now += TTL
    busy.reap()
    for id in "cd":
        busy.promoted(id)
        busy.release(id)
    assert isinstance(busy.promoted("b", "B2", redelivered=True), Granted)


def test_a_copy_promoted_before_the_store_lost_its_data_is_a_redelivered_one(key: Key):
    assert isinstance(key.acquire("a", promoted="yesterday"), Granted)
    assert key.document.holders[0].waited
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
    key.acquire("b")
    assert key.reap(TTL) == ("a",)
    assert isinstance(key.promoted("a", "A2"), Granted)


def test_a_copy_that_was_redelivered_stays_until_it_is_done(key: Key):
    # The first delivery of b lost its connection before it asked: the broker has given b to somebody else,
    # who parked it. If the first one takes the place and dies, nobody but the line has b any more.
    key.acquire("a")
    key.redelivered("b")
    key.release("a")
    assert isinstance(key.acquire("b"), Granted)
    assert key.messages["b"] == b"message of b"
    assert key.reap(TTL) == ("b",)
    assert isinstance(key.promoted("b", "B2"), Granted)
    key.release("b", "B2")
    assert key.last.removed == ("b",)
    assert key.tombstones.keys() == {"b"}


def test_that_a_copy_was_redelivered_is_not_forgotten_when_it_parks_again(key: Key):
    key.acquire("a")
    key.redelivered("b")
    key.promoted("b", "B2")
    assert key.entries["b"].redelivered


def test_a_copy_that_stays_makes_the_reaper_watch_its_run(key: Key):
    key.acquire("a")
    key.redelivered("b")
    key.entries["b"] = replace(key.entries["b"], aside=True)
    key.release("a")
    assert isinstance(key.promoted("b"), Granted)
    assert key.in_line == ["b"]
    assert key.last.due == key.now + TTL
