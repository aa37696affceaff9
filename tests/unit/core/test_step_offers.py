"""Offers, who steps aside after too many, and what happens as time passes."""

from __future__ import annotations

from dataclasses import replace

from celery_exclusive.core.key_state import OFFERS_ASIDE, OFFERS_IN_LINE
from celery_exclusive.core.operations import (
    Granted,
    Owner,
    Parked,
    Release,
    Remove,
    Renew,
)
from celery_exclusive.core.records import NEVER, SECOND
from celery_exclusive.core.step import step
from tests.unit.stepping import START, TEN_MINUTES, TTL, Key, nobody_comes

# Offers.

SPENT = OFFERS_IN_LINE - 1
"""After so many offers a task steps aside: none counts as five."""


def test_offers_double_up_to_ten_minutes(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    lengths = []
    for _ in range(12):
        assert key.last.wake == ("b",)
        lengths.append((key.entries["b"].offer_until - key.now) // SECOND)
        nobody_comes(key, 1)
    assert lengths == [5, 10, 20, 40, 80, 320, 600, 600, 600, 600, 600, 600]


def test_offers_scale_with_the_first_one(key: Key):
    key.acquire("a")
    key.acquire("b")
    for offers, length in ((0, 1), (1, 2), (6, 64), (7, 120), (30, 120)):
        key.entries["b"] = replace(key.entries["b"], offers=offers)
        transition = step(key.document, key.line("a"), Release("a", "A"), key.now, first_offer=SECOND)
        assert transition.entries[0].offer_until == key.now + length * SECOND


def test_an_open_offer_is_not_made_again(busy: Key):
    busy.release("a")
    assert busy.reap(5 * SECOND - 1) == ()
    assert busy.reap(1) == ("b",)


def test_after_seven_offers_it_steps_aside_for_the_tasks_behind(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT - 1)
    assert busy.last.aside == ()
    nobody_comes(busy, 1)
    assert busy.last.aside == ("b",)
    assert busy.last.wake == ("c",)
    assert busy.in_line == ["c", "d"]
    assert busy.aside == ["b"]


def test_the_last_task_in_line_does_not_step_aside(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    nobody_comes(key, 20)
    assert key.in_line == ["b"]
    assert key.entries["b"].offers == 22


def test_no_more_than_the_limit_step_aside_at_once(busy: Key):
    for id in "bcd":
        busy.entries[id] = replace(busy.entries[id], offers=OFFERS_IN_LINE)
    busy.release("a")
    assert busy.last.aside == ("b",)
    assert busy.last.wake == ("c",)


def test_an_entry_aside_is_offered_a_free_place_every_ten_minutes_without_blocking_others(
    busy: Key,
):
    busy.release("a")
    nobody_comes(busy, SPENT)
    assert busy.reap(TEN_MINUTES) == ("c", "b")
    assert busy.aside == ["b"]
    assert isinstance(busy.promoted("c"), Granted)


def test_a_task_aside_is_not_offered_a_place_when_none_is_free(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT)
    busy.promoted("c")
    busy.ask(Renew("c", "C", 2 * TEN_MINUTES))
    assert busy.reap(TEN_MINUTES) == ()


def test_after_64_offers_aside_it_is_only_listed(key: Key):
    for id in "abc":
        key.acquire(id)
    key.release("a")
    nobody_comes(key, SPENT)
    key.promoted("c")
    key.release("c")
    wakes = 0
    while key.last.due is not None:
        wakes += key.reap(key.last.due - key.now).count("b")
    assert wakes == OFFERS_ASIDE
    assert key.entries["b"].offer_until == NEVER
    assert key.entries["b"].offers == OFFERS_IN_LINE + OFFERS_ASIDE
    assert isinstance(key.promoted("b"), Granted)


def test_a_task_that_steps_back_in_is_granted_any_free_place(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT)
    assert busy.in_line == ["c", "d"]
    assert isinstance(busy.promoted("b"), Granted)
    assert isinstance(busy.promoted("c"), Parked)


def test_an_entry_aside_that_finds_no_place_gets_its_old_place_in_line(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT)
    busy.promoted("c")
    assert busy.promoted("b") == Parked(1, (Owner("c", 0, TTL, busy.document.fence, token="C"),))
    assert busy.in_line == ["b", "d"]
    assert busy.entries["b"].offers == 0


def test_a_task_delivered_with_its_last_offer_overdue_gets_the_place(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT - 1)
    assert busy.last.due is not None
    busy.now = busy.last.due
    assert isinstance(busy.promoted("b"), Granted)
    assert busy.aside == []


# Time.


def test_a_dead_lease_is_dropped_and_its_place_offered(busy: Key):
    assert busy.reap(TTL - 1) == ()
    assert busy.reap(1) == ("b",)
    assert busy.holders == []


def test_a_dead_lease_does_not_stop_a_newcomer(key: Key):
    key.acquire("a")
    key.now += TTL
    assert isinstance(key.acquire("b"), Granted)


def test_nothing_is_due_while_no_task_waits(key: Key):
    key.acquire("a")
    assert key.last.due is None


def test_nothing_is_due_when_the_last_in_line_has_its_place(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    key.promoted("b", acks_late=False)
    assert key.last.due is None


def test_due_is_when_the_holder_dies_or_the_offer_ends(busy: Key):
    assert busy.last.due == START + TTL
    busy.release("a")
    assert busy.last.due == START + 5 * SECOND


def test_due_is_when_the_next_offer_to_one_aside_is_to_be_made(busy: Key):
    busy.release("a")
    nobody_comes(busy, SPENT)
    for id in "cd":
        busy.ask(Remove(id))
    assert busy.last.due == busy.now + TEN_MINUTES
    busy.acquire("e")
    assert busy.last.due == busy.now + TTL
