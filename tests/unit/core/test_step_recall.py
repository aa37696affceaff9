"""Messages that are published out of turn, since they expired in line or their tasks were revoked."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Applied, Enqueue, Granted, Parked, Recall, Remove
from celery_exclusive.core.records import RECALLED_AT_ONCE, SECOND
from tests.unit.stepping import START, TTL, Key

pytestmark = pytest.mark.proves("recalled from the line")


@pytest.fixture
def busy(key: Key) -> Key:
    """A key that is held for longer than any test lasts."""
    key.acquire("holder", ttl=1000 * TTL)
    return key


def test_a_message_that_expires_in_line_is_recalled_when_it_is_due(busy: Key) -> None:
    for id in "abc":
        busy.acquire(id, expires_in=3 * SECOND if id == "b" else None)
    assert busy.last.due == START + 3 * SECOND
    assert busy.reap(3 * SECOND - 1) == ()
    assert busy.reap(1) == ("b",)
    assert busy.in_line == ["a", "b", "c"], "until a worker ends it"


def test_a_message_that_is_enqueued_expires_too(busy: Key) -> None:
    busy.ask(Enqueue("a", b"message of a", expires_in=3 * SECOND))
    assert busy.reap(3 * SECOND) == ("a",)


def test_a_message_that_no_worker_ends_is_recalled_once_and_waits_for_its_turn(busy: Key) -> None:
    busy.acquire("a", expires_in=SECOND)
    assert busy.reap(SECOND) == ("a",)
    assert busy.last.due == START + 1000 * TTL
    busy.release("holder")
    assert busy.last.wake == ("a",)


def test_a_worker_whose_clock_is_behind_does_not_cause_a_flood(busy: Key) -> None:
    busy.acquire("a", expires_in=SECOND)
    busy.reap(SECOND)
    assert isinstance(busy.promoted("a", expires_in=0), Parked)
    assert busy.last.due == busy.now + 5 * SECOND, "the first offer"


def test_an_admitted_task_does_not_expire(key: Key) -> None:
    key.acquire("a", expires_in=SECOND)
    key.acquire("b", expires_in=SECOND)
    key.release("a")
    assert isinstance(key.promoted("b", recovers=True, expires_in=SECOND), Granted)
    key.reap(TTL - 1)
    assert key.last.wake == ()
    assert key.reap(1) == ("b",), "its lease is over"


def test_a_sweep_recalls_so_many_and_the_next_one_the_others(busy: Key) -> None:
    for number in range(RECALLED_AT_ONCE + 1):
        busy.acquire(f"{number:03}", expires_in=SECOND)
    assert len(busy.reap(SECOND)) == RECALLED_AT_ONCE
    assert busy.last.due == busy.now
    assert busy.reap() == (f"{RECALLED_AT_ONCE:03}",)


def test_an_offer_and_a_recall_at_once_publish_one_copy(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a", expires_in=TTL)
    assert key.reap(TTL) == ("a",)


def test_a_line_without_messages_that_expire_is_due_for_its_offers_alone(busy: Key) -> None:
    busy.acquire("a", expires_in=SECOND)
    busy.ask(Remove("a"))
    busy.acquire("b")
    assert busy.last.due == START + 1000 * TTL


def test_a_revoked_task_is_recalled_wherever_it_waits(busy: Key) -> None:
    for id in "abc":
        busy.acquire(id)
    assert busy.ask(Recall("b")) == Applied(True)
    assert busy.last.wake == ("b",)
    assert busy.in_line == ["a", "b", "c"]
    assert busy.ask(Recall("b")) == Applied(True)
    assert busy.last.wake == (), "it is on its way"
    busy.now += 5 * SECOND
    busy.ask(Recall("b"))
    assert busy.last.wake == ("b",)


@pytest.mark.parametrize("id", ["holder", "nobody"])
def test_a_task_that_does_not_wait_is_not_recalled(busy: Key, id: str) -> None:
    busy.acquire("a")
    assert busy.ask(Recall(id)) == Applied(False)
    assert busy.last.wake == ()
