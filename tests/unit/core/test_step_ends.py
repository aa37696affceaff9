"""Waits that end without a slot: a task gives up, or a newer one replaces it; and windows for calls."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import (
    Applied,
    Enqueue,
    Granted,
    Held,
    Over,
    Parked,
    Remove,
    Stale,
    StandBehind,
)
from celery_exclusive.core.records import NAMED, NEVER, SECOND
from tests.unit.stepping import TTL, Key

pytestmark = pytest.mark.promise(
    "In every store, a task that gives up or that a newer one replaces is woken until one delivery has ended "
    "it; a task that has begun before is neither given up nor replaced; calls gather in a window with the "
    "newest message",
    name="ends of a wait",
)
OFFER = 5 * SECOND


@pytest.fixture
def busy(key: Key) -> Key:
    """A key that is held for longer than any test lasts."""
    key.acquire("holder", ttl=1_000_000 * TTL)
    return key


def test_a_task_that_gives_up_is_woken_when_its_time_has_come(busy: Key) -> None:
    busy.acquire("a", gives_up_in=3 * SECOND)
    assert busy.reap(3 * SECOND - 1) == ()
    assert busy.reap(1) == ("a",)
    assert busy.in_line == []
    assert busy.promoted("a") == Over("", busy.owners())


def test_a_message_that_expires_before_it_gives_up_is_only_recalled(busy: Key) -> None:
    busy.acquire("a", gives_up_in=3 * SECOND, expires_in=2 * SECOND)
    assert busy.reap(2 * SECOND) == ("a",)
    assert busy.in_line == ["a"]
    assert busy.reap(SECOND) == ()


def test_a_task_that_waits_for_a_worker_alone_does_not_give_up(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a", gives_up_in=SECOND)
    key.release("holder")
    assert key.reap(SECOND) == ()
    assert isinstance(key.promoted("a"), Granted)


def test_a_task_that_lost_its_turn_gives_up_soon_after(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a", gives_up_in=SECOND)
    key.release("holder")
    key.reap(SECOND)
    key.acquire("passes", order="any", ttl=1000 * TTL)
    assert "a" in key.reap(OFFER)
    assert isinstance(key.promoted("a"), Over)


def test_a_published_task_for_a_free_key_gives_up_only_if_others_pass_it(key: Key) -> None:
    key.ask(Enqueue("a", b"message of a", gives_up_in=SECOND))
    assert key.reap(SECOND) == ()
    key.acquire("passes", order="any", ttl=1000 * TTL)
    assert key.reap(OFFER) == ("a",)
    assert isinstance(key.promoted("a"), Over)


def test_the_time_to_give_up_does_not_begin_anew_with_another_delivery(busy: Key) -> None:
    busy.acquire("a", gives_up_in=3 * SECOND)
    busy.now += 2 * SECOND
    busy.acquire("a", redelivered=True, gives_up_in=3 * SECOND)
    assert busy.reap(SECOND) == ("a",)


def test_each_newer_message_replaces_the_one_that_waits(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    for older, newer in ("ab", "bc"):
        busy.acquire(newer, replaces=True)
        assert busy.last.wake == (older,)
        assert busy.in_line == [newer]
        assert busy.promoted(older) == Over(newer, busy.owners())


def test_a_task_whose_turn_it_is_is_not_replaced(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a", replaces=True)
    key.release("holder")
    key.acquire("b", replaces=True)
    assert key.in_line == ["a", "b"]
    key.acquire("c", replaces=True)
    assert key.in_line == ["a", "c"], "else none would ever start"


@pytest.mark.proves("doomed holders")
def test_only_of_a_wait_that_is_over_it_is_said_that_the_message_never_begins(busy: Key):
    busy.acquire("a", replaces=True)
    assert busy.ask(StandBehind("a")) == Applied(False)
    busy.acquire("b", replaces=True)
    assert busy.ask(StandBehind("a")) == Applied(True)
    assert busy.ask(StandBehind("b")) == Applied(False)
    assert busy.ask(StandBehind("unknown")) == Applied(False)


def test_a_delivery_that_comes_again_replaces_nothing(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    busy.acquire("b")
    busy.acquire("a", redelivered=True, replaces=True)
    assert busy.in_line == ["a", "b"]


def test_a_published_call_replaces_the_one_that_waits(busy: Key) -> None:
    busy.ask(Enqueue("a", b"message of a", replaces=True))
    for _ in range(2):  # a repeated request, too
        busy.ask(Enqueue("b", b"message of b", replaces=True))
        assert busy.in_line == ["b"]


def test_a_replaced_task_behind_which_many_others_wait_stays(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    for number in range(NAMED):
        busy.acquire(f"{number}")
    busy.acquire("b", replaces=True)
    assert busy.in_line[0] == "a"


def test_a_run_that_died_is_neither_replaced_nor_given_up(key: Key) -> None:
    key.acquire("a", recovers=True, at_once=True, replaces=True, gives_up_in=SECOND)
    assert key.reap(TTL) == ("a",)
    key.acquire("passes", order="any", ttl=1000 * TTL)
    key.acquire("b", replaces=True)
    assert key.in_line == ["a", "b"]
    key.reap(TTL)
    assert key.in_line[0] == "a"


def test_a_task_that_no_worker_ends_is_woken_without_end_but_ever_more_rarely(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    busy.acquire("b", replaces=True)
    for number in range(16):  # the pauses are 3.8 days together
        assert busy.reap(2**number * OFFER - 1) == ()
        assert busy.reap(1) == ("a",)
    assert isinstance(busy.promoted("a"), Over)


def test_the_pauses_before_a_wake_end_with_time_itself(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    busy.acquire("b", replaces=True)
    while (deadline := busy.entries["a"].deadline) != NEVER:
        assert "a" in busy.reap(deadline - busy.now)
    assert isinstance(busy.promoted("a"), Over)


def test_replaced_task_gets_no_free_slot(key: Key) -> None:
    key.acquire("holder")
    key.acquire("a", replaces=True)
    key.acquire("b", replaces=True)
    key.ask(Remove("b"))
    key.release("holder")
    assert key.last.wake == ()
    assert isinstance(key.promoted("a"), Over)


def test_another_copy_of_what_has_ended_is_stale(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    busy.acquire("b", replaces=True)
    busy.promoted("a")
    assert busy.promoted("a") == Stale()
    assert busy.promoted("a", redelivered=True) == Over("b", busy.owners())
    assert busy.promoted("a", promoted="") == Over("b", busy.owners()), "published again by its worker"
    assert busy.acquire("a", redelivered=True) == Stale()
    busy.release("a")
    for again in ({"redelivered": True}, {"promoted": ""}):
        assert busy.promoted("a", **again) == Stale(), "its task has ended"


def test_only_a_copy_that_the_store_has_published_ends_a_wait(busy: Key) -> None:
    busy.acquire("a", replaces=True)
    busy.acquire("b", replaces=True)
    for redelivered in (False, True):
        assert busy.acquire("a", redelivered=redelivered) == Stale()
    assert isinstance(busy.promoted("a"), Over)


def test_a_window_is_open_until_the_calls_pause(key: Key) -> None:
    for _ in range(2):
        assert isinstance(call(key, "a"), Parked)
        assert key.reap(SECOND) == ()
    assert isinstance(call(key, "a"), Parked)
    assert key.reap(2 * SECOND - 1) == ()
    assert key.reap(1) == ("a",)
    assert call(key, "a") == Applied(False)


def test_a_window_is_open_for_so_long_at_most(key: Key) -> None:
    woken = []
    for _ in range(5):
        call(key, "a")
        woken += key.reap(SECOND)
    assert woken == ["a"]


def test_another_call_gets_the_id_of_the_open_window(key: Key) -> None:
    call(key, "a")
    answer = call(key, "b")
    assert isinstance(answer, Held)
    assert [owner.id for owner in answer.by] == ["a"]
    assert key.in_line == ["a"]


def test_tasks_that_wait_for_the_key_are_no_windows(busy: Key) -> None:
    busy.acquire("a")
    assert isinstance(call(busy, "b"), Parked)
    assert busy.in_line == ["a", "b"]


def test_a_window_whose_time_is_over_gathers_calls_until_its_turn_comes(busy: Key) -> None:
    call(busy, "a")
    assert busy.reap(60 * SECOND) == ()
    assert isinstance(call(busy, "a"), Parked)
    busy.release("holder")
    busy.reap(1)
    assert call(busy, "a") == Applied(False)


def call(key: Key, id: str) -> object:
    return key.ask(Enqueue(id, b"message", waits=(2 * SECOND, 4 * SECOND)))
