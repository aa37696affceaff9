"""Each rule of the heart, one by one: who is granted a slot, who waits, and who leaves."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    ForceRelease,
    Full,
    Granted,
    Held,
    Owner,
    Parked,
    Remove,
    Restore,
    Stale,
)
from celery_exclusive.core.records import SECOND, Entry, Holder
from celery_exclusive.core.step import Transition
from tests.unit.stepping import START, TTL, Key

# Granted, parked, held.


def test_a_free_key_is_granted(key: Key):
    assert key.acquire("a") == Granted(START)
    assert key.holders == ["a"]
    assert key.document.holders[0].expiry == START + TTL


def test_a_task_that_finds_it_held_is_parked_with_its_message(busy: Key):
    assert busy.acquire("e") == Parked(4, (Owner("a", 0, TTL, START, token="A"),))
    assert busy.in_line == ["b", "c", "d", "e"]
    assert busy.messages["e"] == b"message of e"


def test_an_acquire_without_a_message_is_answered_with_the_holders_and_stores_nothing(key: Key):
    key.acquire("a")
    key.now += 10 * SECOND
    assert key.acquire("b", message=None) == Held((Owner("a", 10 * SECOND, 20 * SECOND, START, token="A"),))
    assert not key.entries
    assert not key.messages


@pytest.mark.promise(
    "A call refused under a lower limit leaves no slot unoffered",
    broke="the line is not put in order again",
)
def test_a_call_refused_under_a_lower_limit_leaves_no_slot_unoffered():
    key = Key(limit=1)
    for id in "abc":
        key.acquire(id)
    key.ask(Acquire("a", "A", TTL, limit=2))
    key.now += TTL + SECOND
    assert isinstance(key.ask(Acquire("x", "X", TTL, limit=1)), Held)
    assert key.document.limit == 2
    assert {id for id, entry in key.entries.items() if entry.offer_until > key.now} == {"b", "c"}


def test_held_lists_holders_in_order_of_their_grant_then_offered_ids():
    key = Key(limit=3)
    for id in "abcde":
        key.acquire(id)
    key.release("b")
    key.now += SECOND
    answer = key.acquire("x", message=None)
    assert isinstance(answer, Held)
    assert [owner.id for owner in answer.by] == ["a", "c", "d"]
    assert answer.by[2] == Owner("d", 0, 4 * SECOND, phase="offered")


def test_an_id_that_waits_is_never_answered_held(busy: Key):
    assert busy.acquire("b", message=None) == Parked(1, (Owner("a", 0, TTL, START, token="A"),))
    assert busy.messages["b"] == b"message of b"
    assert not busy.last.kept


def test_a_newcomer_is_not_parked_behind_more_than_may_wait(busy: Key):
    assert busy.acquire("e", max_waiting=3) == Full(3, (Owner("a", 0, TTL, START, token="A"),))
    assert busy.in_line == ["b", "c", "d"]
    assert "e" not in busy.messages
    assert busy.acquire("e", max_waiting=4) == Parked(4, (Owner("a", 0, TTL, START, token="A"),))


@pytest.mark.parametrize("id", ["b", "d"])
def test_a_full_line_keeps_the_tasks_that_wait_in_it(busy: Key, id: str):
    assert isinstance(busy.acquire(id, max_waiting=1), Parked)


@pytest.mark.parametrize("how", [{"redelivered": True}, {"promoted": "of a store before"}])
def test_a_full_line_takes_what_the_broker_brings_again(busy: Key, how: dict[str, object]):
    assert isinstance(busy.acquire("e", max_waiting=3, **how), Parked)


def test_a_full_line_does_not_refuse_a_free_key(key: Key):
    assert isinstance(key.acquire("a", max_waiting=0), Granted)


def test_a_force_released_lease_frees_its_place_for_the_next_in_line(busy: Key):
    assert busy.ask(ForceRelease("a")) == Applied(True)
    assert busy.last.wake == ("b",)
    assert busy.holders == []
    assert busy.release("a") == Applied(False)


def test_the_copy_of_a_broken_run_stays_in_line(busy: Key):
    busy.redelivered("a")
    busy.ask(ForceRelease("a"))
    assert busy.in_line == ["b", "c", "d", "a"]
    assert not busy.tombstones


def test_force_release_of_a_free_key_only_looks_at_the_clock(busy: Key):
    busy.now += TTL
    assert busy.ask(ForceRelease("nobody")) == Applied(False)
    assert busy.last.wake == ("b",)


def test_a_lost_lease_is_restored_before_the_task_to_which_its_place_is_offered(busy: Key):
    (lost,) = busy.document.holders
    busy.ask(ForceRelease("a"))
    assert busy.ask(Restore("a", "of a", TTL)) == Applied(True)
    assert busy.last.wake == ()
    (restored,) = busy.document.holders
    assert restored == Holder("a", "of a", busy.now + TTL, restored.fence, may_have_copies=True)
    assert restored.fence > lost.fence
    assert isinstance(busy.promoted("b"), Parked)
    busy.release("a", "of a")
    assert busy.last.wake == ("b",)
    assert "a" in busy.tombstones


def test_a_forgotten_lease_is_restored_only_where_there_is_a_place(busy: Key):
    assert busy.ask(Restore("e", "of e", TTL)) == Applied(False)
    assert busy.ask(Restore("e", "of e", TTL, limit=2)) == Applied(True)
    assert busy.ask(Restore("f", "of f", TTL, limit=2)) == Applied(False)
    busy.now += TTL
    assert busy.ask(Restore("f", "of f", TTL)) == Applied(True)


def test_a_lost_lease_is_not_restored_for_an_id_that_waits_or_has_finished(busy: Key):
    busy.release("a")
    assert busy.ask(Restore("b", "of b", TTL)) == Applied(False)
    assert "b" in busy.in_line
    busy.promoted("b")
    busy.release("b")
    assert busy.ask(Restore("b", "of b", TTL)) == Applied(False)


def test_a_forgotten_lease_is_restored_once(key: Key):
    assert key.ask(Restore("a", "of a", TTL)) == Applied(True)
    before = key.document
    assert key.ask(Restore("a", "of a", TTL)) == Applied(True)
    assert key.ask(Restore("a", "of another", TTL)) == Applied(False)
    assert key.document == before


def test_a_free_place_that_is_offered_is_not_granted_to_a_newcomer(busy: Key):
    busy.release("a")
    assert busy.acquire("e") == Parked(4, (Owner("b", 0, 5 * SECOND, phase="offered"),))
    assert isinstance(busy.acquire("x", message=None), Held)


def test_a_newcomer_never_passes_a_waiting_one_even_with_places_to_spare():
    key = Key()
    for id in "abc":
        key.acquire(id)
    assert isinstance(key.acquire("d", limit=3), Parked)
    assert key.last.wake == ("b", "c")
    assert isinstance(key.acquire("e", limit=5), Granted)
    assert key.last.wake == ("d",)


def test_waiting_tasks_run_in_the_order_in_which_they_came(busy: Key):
    order = []
    busy.release("a")
    while busy.last.wake:
        (id,) = busy.last.wake
        assert isinstance(busy.promoted(id), Granted)
        order.append(id)
        busy.release(id)
    assert order == ["b", "c", "d"]


def test_a_place_is_granted_to_the_task_that_it_is_offered_to(busy: Key):
    busy.release("a")
    assert busy.last.wake == ("b",)
    assert isinstance(busy.promoted("c"), Parked)
    assert isinstance(busy.promoted("b"), Granted)
    assert busy.in_line == ["c", "d"]


def test_parking_again_keeps_the_place_in_line_and_takes_the_new_message(busy: Key):
    assert busy.redelivered("c", message=b"newer") == Parked(2, (Owner("a", 0, TTL, START, token="A"),))
    assert busy.in_line == ["b", "c", "d"]
    assert busy.messages["c"] == b"newer"


def test_parking_again_forgets_the_offers_it_had(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.now += TTL
    key.reap()
    assert key.entries["b"].offers == 1
    key.acquire("a", "A again", limit=2)
    key.promoted("b", limit=1)
    assert key.entries["b"] == Entry("b", key.entries["b"].seq)


# The same question again.


def test_the_same_delivery_may_ask_twice(key: Key):
    first = key.acquire("a")
    key.now += 10 * SECOND
    assert key.acquire("a") == first
    assert key.document.holders[0].expiry == key.now + TTL


def test_asking_twice_never_shortens_the_lease(key: Key):
    key.acquire("a")
    key.acquire("a", ttl=SECOND)
    assert key.document.holders[0].expiry == START + TTL


def test_another_delivery_of_the_same_id_does_not_get_its_lease(key: Key):
    key.acquire("a")
    assert isinstance(key.redelivered("a"), Parked)
    assert [holder.token for holder in key.document.holders] == ["A"]


def test_an_early_promoted_copy_whose_lease_lapsed_unheard_must_ask_again_as_redelivered(busy: Key):
    busy.release("a")
    busy.promoted("b", acks_late=False)
    busy.now += TTL
    assert busy.look(Acquire("b", "B", TTL, promoted="today")).answer == Stale()
    assert isinstance(busy.redelivered("b", "B"), Parked)


# Limit.


def test_a_limit_lets_so_many_in():
    key = Key(limit=2)
    answers = [key.acquire(id) for id in "abc"]
    assert [type(answer) for answer in answers] == [Granted, Granted, Parked]


def test_a_raised_limit_offers_the_new_places(busy: Key):
    assert isinstance(busy.acquire("e", limit=3), Parked)
    assert busy.last.wake == ("b", "c")
    assert busy.document.limit == 3


def test_a_lowered_limit_evicts_no_holder():
    key = Key(limit=3)
    for id in "abcd":
        key.acquire(id)
    assert isinstance(key.acquire("e", limit=1), Parked)
    assert key.holders == ["a", "b", "c"]
    for id in "ab":
        key.release(id)
        assert key.last.wake == ()
    key.release("c")
    assert key.last.wake == ("d",)


# Remove.


def test_a_removed_id_leaves_the_line_for_good(busy: Key):
    assert busy.ask(Remove("b")) == Applied(True)
    assert busy.in_line == ["c", "d"]
    assert busy.promoted("b") == Stale()
    assert busy.redelivered("b") == Stale()


def test_removing_the_head_hands_its_offer_on(busy: Key):
    busy.release("a")
    busy.ask(Remove("b"))
    assert busy.last.wake == ("c",)


def test_removing_a_stranger_finds_nothing(busy: Key):
    before = busy.document
    assert busy.ask(Remove("x")) == Applied(False)
    assert busy.last == Transition(before, Applied(False), due=START + TTL)


def test_an_id_that_is_set_aside_hands_its_offer_on_and_stays_for_a_later_one(busy: Key):
    busy.release("a")
    assert busy.ask(Remove("b", "aside")) == Applied(True)
    assert busy.last.wake == ("c",)
    assert busy.in_line == ["c", "d"]
    assert busy.ask(Remove("b", "aside")) == Applied(False)
    assert isinstance(busy.promoted("b"), Granted)  # as any id aside


def test_setting_aside_does_not_touch_the_copy_of_a_run(key: Key):
    key.acquire("a", recovers=True)
    before = key.document
    assert key.ask(Remove("a", "aside")) == Applied(False)
    assert key.document == before


def test_removing_does_not_end_a_run(key: Key):
    key.acquire("a")
    assert key.ask(Remove("a")) == Applied(False)
    assert key.holders == ["a"]
