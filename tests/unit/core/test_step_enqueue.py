"""A message that takes its place in line when it is published, and orders of starting."""

from __future__ import annotations

from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Answer,
    Applied,
    Enqueue,
    Granted,
    Parked,
    Remove,
    Stale,
    StandBehind,
)
from celery_exclusive.core.records import PUBLISHED, SECOND, SENT
from tests.unit.stepping import TTL, Key, nobody_comes

A_DAY = 86_400 * SECOND

pytestmark = pytest.mark.proves("order of publishing")

SEND, HAS_BEGUN = Applied(True), Applied(False)


def enqueue(key: Key, id: str, limit: int = 1, queue: str = "/low") -> Answer:
    return key.ask(Enqueue(id, f"message of {id}".encode(), limit, queue=queue))


def test_a_free_key_s_message_is_sent_and_holds_its_place(key: Key):
    assert enqueue(key, "a") == SEND
    assert key.last.wake == ()
    assert isinstance(key.acquire("newcomer"), Parked)
    assert isinstance(key.promoted("a"), Granted)


def test_a_busy_key_s_message_waits_in_the_store(key: Key):
    key.acquire("a")
    answer = enqueue(key, "b")
    assert isinstance(answer, Parked)
    assert answer.position == 1
    key.release("a")
    assert key.last.wake == ("b",)
    assert key.messages["b"] == b"message of b"


def test_a_message_above_the_rate_of_its_key_is_told_so_and_when_the_next_may_start(key: Key):
    rates = ((1, 60 * SECOND),)
    key.acquire("a", rates=rates)
    key.release("a")
    parked = key.ask(Enqueue("b", b"", rates=rates))
    assert isinstance(parked, Parked)
    assert [(owner.phase, owner.opens_in) for owner in parked.by] == [("rate", 60)]


def test_messages_start_in_the_order_in_which_they_were_published(key: Key):
    assert enqueue(key, "a") == SEND
    assert [type(enqueue(key, id)) for id in "bc"] == [Parked, Parked]
    assert isinstance(key.promoted("c"), Parked)  # nobody passes, however it comes
    for id in "abc":
        assert isinstance(key.promoted(id), Granted)
        key.release(id)


@pytest.mark.proves("lost message of a unique call")
def test_a_call_that_stands_behind_a_lost_message_lets_it_be_offered_again(key: Key):
    enqueue(key, "a")
    assert key.ask(StandBehind("a")) == Applied(False)
    assert key.last.wake == ()
    assert key.reap(5 * SECOND) == ("a",)


@pytest.mark.proves("lost message of a unique call")
def test_a_call_that_stands_behind_a_message_leaves_the_offers_to_others_as_they_are():
    key = Key(limit=2)
    for id in "ab":
        enqueue(key, id, limit=2)
    key.ask(StandBehind("a"))
    assert key.reap(A_DAY // 2) == ("a",)


@pytest.mark.proves("lost message of a unique call")
def test_a_stream_of_duplicates_publishes_a_queued_message_no_more_often_than_one_waiting_call():
    published = []
    for of_duplicates in (False, True):
        key, wakes = Key(), 0
        for id in "a" if of_duplicates else "ab":
            enqueue(key, id)
        for _ in range(15 * 60):
            key.now += SECOND
            if of_duplicates:
                key.ask(StandBehind("a"))
            wakes += key.reap().count("a")
        published.append(wakes)
    assert published == [3, 3]


@pytest.mark.proves("lost message of a unique call")
def test_a_call_that_stands_behind_a_message_of_another_line_shortens_no_offer_of_this_one(key: Key):
    enqueue(key, "a")
    assert key.ask(StandBehind("elsewhere")) == Applied(False)
    assert key.reap(5 * SECOND) == ()


@pytest.mark.proves("two queues")
def test_a_call_of_another_queue_passes_a_message_that_no_worker_takes(key: Key):
    for id, queue in (("a", "/low"), ("b", "/low"), ("c", "/high")):
        enqueue(key, id, queue=queue)
    assert key.reap(5 * SECOND) == ("b", "a"), "its only copy may be lost"
    assert key.last.aside == (), "which would be logged"
    assert key.reap(5 * SECOND) == ("c", "b")
    assert isinstance(key.promoted("c"), Granted)
    key.release("c")
    assert isinstance(key.promoted("b"), Granted), "whoever comes first"
    assert isinstance(key.promoted("a"), Parked)
    assert key.in_line == ["a"]


@pytest.mark.proves("two queues")
def test_of_a_message_that_has_had_all_its_offers_aside_it_is_said_once(key: Key):
    enqueue(key, "a")
    enqueue(key, "b", queue="/high")
    seen = []
    for _ in range(4):
        key.reap(600 * SECOND)
        seen += key.last.aside
    assert seen == ["a"]


@pytest.mark.proves("two queues")
def test_a_call_of_another_queue_waits_no_longer_for_one_that_has_had_its_time(key: Key):
    enqueue(key, "a")
    key.now += 5 * SECOND
    enqueue(key, "b", queue="/high")
    assert key.reap() == ("b", "a")


def test_calls_of_one_queue_do_not_pass_each_other(key: Key):
    for id in "abc":
        enqueue(key, id)
    assert key.reap(5 * SECOND) == ("a",)
    assert key.reap(5 * SECOND) == ()
    assert isinstance(key.promoted("b"), Parked)
    key.promoted("a")
    key.release("a")
    enqueue(key, "d", queue="/high")
    assert key.document.queue == "*"
    for id in "bcd":
        key.promoted(id)
        key.release(id)
    enqueue(key, "e", queue="/high")
    assert key.document.queue == "/high", "of a new line"


def test_with_a_limit_as_many_are_sent_at_once(key: Key):
    assert [enqueue(key, id, 2) for id in "ab"] == [SEND, SEND]
    assert isinstance(enqueue(key, "c", 2), Parked)


def test_a_repeated_request_gets_the_same_answer(key: Key):
    assert [enqueue(key, "a") for _ in range(2)] == [SEND, SEND]
    assert [type(enqueue(key, "b")) for _ in range(2)] == [Parked, Parked]
    assert key.in_line == ["a", "b"]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_repeated_request_of_a_message_that_has_begun_sends_nothing(key: Key, is_over: bool):
    enqueue(key, "a")
    key.promoted("a", acks_late=False)
    if is_over:
        key.release("a")
    assert enqueue(key, "a") == HAS_BEGUN


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_message_that_is_sent_once_leaves_the_mark_of_its_call_alone(key: Key, acks_late: bool):
    enqueue(key, "a")
    key.promoted("a", acks_late=acks_late)
    key.release("a")
    assert key.tombstones == {"a": SENT}
    assert isinstance(key.redelivered("a"), Granted), "as in plain Celery"


@pytest.mark.parametrize("delivery", [{"promoted": ""}, {"promoted": "today", "redelivered": True}])
def test_a_message_that_may_have_been_sent_twice_leaves_a_tombstone(key: Key, delivery: dict[str, Any]):
    enqueue(key, "a")
    key.acquire("a", **delivery)
    key.release("a")
    assert key.promoted("a", "A2") == Stale()


def test_a_message_whose_publisher_asks_again_may_have_been_sent_twice(key: Key):
    assert [enqueue(key, "a") for _ in range(2)] == [SEND, SEND]
    enqueue(key, "b")
    assert key.last.due == key.now + 5 * SECOND, "b waits no longer for it than for any offer"
    assert isinstance(key.promoted("a"), Granted)
    key.release("a")
    assert key.promoted("a", "A2") == Stale()


def test_no_message_that_was_woken_counts_as_sent_once(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    for _ in range(10):
        assert key.entries["b"].offers != PUBLISHED
        nobody_comes(key, 1)
    enqueue(key, "expiring")
    key.ask(Remove("b"))
    key.ask(Enqueue("c", b"message of c", expires_in=SECOND))
    key.ask(Remove("expiring"))
    assert key.reap(2 * SECOND) == ("c",)
    assert key.entries["c"].offers != PUBLISHED


def test_a_message_that_the_broker_loses_is_offered_again(key: Key):
    enqueue(key, "a")
    assert key.last.due == key.now + A_DAY
    assert key.reap(A_DAY) == ("a",)
    key.promoted("a")
    key.release("a")
    assert key.promoted("a", "A2") == Stale()


@pytest.mark.proves("calls offer nothing")
def test_a_call_offers_nothing_and_leaves_that_to_the_next_sweep(key: Key):
    enqueue(key, "a")
    for id in "bcdefghi":
        enqueue(key, id)
        assert key.last.wake == ()
        key.now += 3600 * SECOND
    assert key.last.due is not None
    assert key.last.due < key.now
    assert key.in_line[0] == "a"
    assert key.reap() == ("a",)


@pytest.mark.proves("late messages")
@pytest.mark.parametrize("late", [0, 60 * SECOND])
def test_others_wait_no_longer_for_a_late_message_than_for_an_offered_one(key: Key, late: int):
    enqueue(key, "a")
    key.now += late
    enqueue(key, "b")
    assert key.last.due == key.now + 5 * SECOND
    assert key.reap(5 * SECOND) == ("a",)
    assert isinstance(key.promoted("a"), Granted)
    assert key.promoted("a", "A2") == Stale(), "the late message itself"


def test_a_request_without_a_message_does_not_wait_for_a_late_message(key: Key):
    enqueue(key, "a")
    key.acquire("lock", message=None)
    assert key.last.due == key.now + 5 * SECOND


@pytest.mark.proves("late messages")
def test_later_requests_do_not_shorten_an_offer_that_was_made_again(key: Key):
    enqueue(key, "a")
    enqueue(key, "b")
    key.reap(5 * SECOND)
    key.acquire("c")
    assert key.last.due == key.now + 160 * SECOND


@pytest.mark.parametrize("early", [False, True])
def test_a_dead_run_of_order_published_is_the_next_to_start(key: Key, early: bool):
    for id in "abc":
        enqueue(key, id)
    key.promoted("a", order="published", recovers=not early)
    assert key.reap(TTL) == ("a",)
    assert key.in_line == ["a", "b", "c"]


def test_a_dead_run_whose_copy_has_come_meanwhile_is_the_next_to_start(key: Key):
    for id in "ab":
        enqueue(key, id)
    key.promoted("a", order="published")
    key.redelivered("a", "A2", order="published")
    assert key.reap(TTL) == ("a",)
    assert key.in_line == ["a", "b"]


def test_a_run_that_goes_back_to_the_broker_is_the_next_to_start(key: Key):
    for id in "ab":
        enqueue(key, id)
    key.promoted("a", order="published")
    key.release("a", ending="open")
    assert key.last.wake == ()
    assert key.reap(5 * SECOND) == ("a",)
    assert key.in_line == ["a", "b"]


def test_order_any_grants_a_free_slot_to_the_first_that_asks(busy: Key):
    busy.release("a")
    assert isinstance(busy.acquire("x", order="any"), Granted)
    assert isinstance(busy.promoted("b", order="any"), Parked)
    busy.release("x")
    assert isinstance(busy.promoted("b", order="any"), Granted)
