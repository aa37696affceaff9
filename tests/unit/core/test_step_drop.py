"""Tasks that an operator drops from the line."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Applied, Drop, Enqueue, Granted, Stale
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import START, TTL, Key

pytestmark = pytest.mark.proves("dropped from the line")


@pytest.fixture
def busy(key: Key) -> Key:
    """A key that is held for longer than any test lasts."""
    key.acquire("holder", ttl=1000 * TTL)
    return key


def test_a_dropped_task_leaves_the_line_and_the_others_keep_their_order(busy: Key) -> None:
    for id in "abc":
        busy.acquire(id)
    assert busy.ask(Drop("b", "mine")) == Applied(True)
    assert busy.in_line == ["a", "c"]


def test_only_the_request_that_removed_the_task_is_told_so_and_its_repetition(busy: Key) -> None:
    busy.acquire("a")
    assert busy.ask(Drop("a", "mine")) == Applied(True)
    assert busy.ask(Drop("a", "another's")) == Applied(False)
    assert busy.ask(Drop("a", "mine")) == Applied(True)


@pytest.mark.parametrize("id", ["holder", "nobody"])
def test_a_task_that_does_not_wait_is_not_dropped(busy: Key, id: str) -> None:
    assert busy.ask(Drop(id, "mine")) == Applied(False)


def test_the_copy_of_a_running_task_is_not_dropped(key: Key) -> None:
    key.acquire("a", recovers=True)
    assert key.ask(Drop("a", "mine")) == Applied(False)
    assert key.behind == ["a"]


def test_a_task_that_has_begun_or_finished_was_not_dropped(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a")
    key.release("holder")
    key.promoted("a", acks_late=False)
    assert key.ask(Drop("a", "mine")) == Applied(False)
    key.release("a")
    assert key.ask(Drop("a", "mine")) == Applied(False)


def test_a_drop_offers_nothing_to_the_next_task_in_line_but_makes_the_key_due(key: Key) -> None:
    key.acquire("holder")
    for id in "abc":
        key.acquire(id)
    key.release("holder")
    assert key.last.wake == ("a",)
    for id in "ab":
        assert key.ask(Drop(id, "mine")) == Applied(True)
        assert key.last.wake == ()
        assert key.last.due is not None
        assert key.last.due <= key.now
    assert key.reap() == ("c",)


def test_no_copy_of_a_dropped_task_begins(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a")
    key.release("holder")
    key.ask(Drop("a", "mine"))
    assert key.promoted("a") == Stale()
    assert key.redelivered("a") == Stale()


def test_no_copy_of_a_dropped_call_with_its_place_begins(key: Key) -> None:
    key.ask(Enqueue("a", b"message of a"))
    assert key.ask(Drop("a", "mine")) == Applied(True)
    assert key.promoted("a") == Stale()
    assert isinstance(key.acquire("b"), Granted)


def test_a_window_of_calls_is_dropped_and_another_one_opens(key: Key) -> None:
    waits = (3 * SECOND, 9 * SECOND)
    key.ask(Enqueue("a", b"first", waits=waits))
    assert key.ask(Drop("a", "mine")) == Applied(True)
    assert key.last.due is None
    key.ask(Enqueue("b", b"second", waits=waits))
    assert key.in_line == ["b"]
    assert key.last.due == START + 3 * SECOND


def test_a_task_aside_is_dropped(busy: Key) -> None:
    busy.acquire("a", gives_up_in=SECOND)
    busy.reap(SECOND)
    assert busy.aside == ["a"]
    assert busy.ask(Drop("a", "mine")) == Applied(True)
    assert busy.aside == []
    assert busy.promoted("a") == Stale(), "its wait is over twice"
