"""Each rule of the heart, one by one, and then all of them in any order that Hypothesis can think of."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from celery_exclusive.core import step as core
from celery_exclusive.core.document import NEVER, SECOND, Document, Entry, Holder, Line, reach
from celery_exclusive.core.operations import (
    Acquire,
    Answer,
    Break,
    Done,
    Full,
    Granted,
    Held,
    Operation,
    Parked,
    Reap,
    Release,
    Remove,
    Renew,
    Restore,
    Rival,
    Stale,
)
from celery_exclusive.core.step import OFFERS_ASIDE, OFFERS_IN_LINE, Transition, step

TTL = 30 * SECOND
START = 1_000 * SECOND
TEN_MINUTES = 600 * SECOND


class Key:
    """The least of a store: one key, and a clock that only moves when told."""

    def __init__(self, limit: int = 1) -> None:
        self.now = START
        self.document = Document(limit=limit, epoch="today")
        self.entries: dict[str, Entry] = {}
        self.messages: dict[str, bytes] = {}
        self.tombstones: dict[str, str] = {}
        self.last: Transition

    def ask(self, operation: Operation) -> Answer:
        self.last = last = self.look(operation)
        self.document = last.document
        changed = {entry.id: entry for entry in last.entries}
        assert not changed.keys() & set(last.removed)
        self.entries.update(changed)
        for id in last.removed:
            del self.entries[id], self.messages[id]
        if last.kept:
            assert isinstance(operation, Acquire)
            assert operation.message is not None
            self.messages[operation.id] = operation.message
        if last.tombstone is not None:
            assert not isinstance(operation, Reap)
            self.tombstones[operation.id] = last.tombstone
        return last.answer

    def look(self, operation: Operation, now: int | None = None, count: int | None = None) -> Transition:
        """What `ask` would answer; `count`: with so many entries of the line."""
        line = self.line("" if isinstance(operation, Reap) else operation.id, count)
        return step(self.document, line, operation, self.now if now is None else now)

    def line(self, id: str, count: int | None = None) -> Line:
        waiting = sorted((e for e in self.entries.values() if not e.aside), key=lambda e: e.seq)
        aside = sorted((e for e in self.entries.values() if e.aside), key=lambda e: (e.offer_until, e.id))
        own = self.entries.get(id)
        return Line(
            waiting=len(waiting),
            head=tuple(waiting[:count]),
            aside=tuple(aside[:count]),
            own=own,
            ahead=sum(own is None or entry.seq < own.seq for entry in waiting),
            tombstone=self.tombstones.get(id),
        )

    def acquire(self, id: str, token: str = "", **options: object) -> Answer:
        limit = self.document.limit
        ask = Acquire(id, token or id.upper(), TTL, limit, message=f"message of {id}".encode())
        return self.ask(replace(ask, **options))

    def promoted(self, id: str, token: str = "", **options: object) -> Answer:
        return self.acquire(id, token, promoted="today", **options)

    def redelivered(self, id: str, token: str = "", **options: object) -> Answer:
        return self.acquire(id, token or f"{id.upper()} again", redelivered=True, **options)

    def release(self, id: str, token: str = "", *, done: bool = True) -> Answer:
        return self.ask(Release(id, token or id.upper(), done))

    def reap(self, after: int = 0) -> tuple[str, ...]:
        """Let time pass, let the reaper look, and tell whom it wakes."""
        self.now += after
        self.ask(Reap())
        return self.last.wake

    @property
    def holders(self) -> list[str]:
        return [holder.id for holder in self.document.holders]

    @property
    def in_line(self) -> list[str]:
        return [entry.id for entry in self.line("").head]

    @property
    def aside(self) -> list[str]:
        return [entry.id for entry in self.line("").aside]


@pytest.fixture
def key() -> Key:
    return Key()


@pytest.fixture
def busy() -> Key:
    """A holds it; B, C and D wait in this order."""
    key = Key()
    for id in "abcd":
        key.acquire(id)
    return key


def nobody_comes(key: Key, offers: int) -> None:
    """Let so many offers run out."""
    for _ in range(offers):
        assert key.last.due is not None
        key.reap(key.last.due - key.now)


# Granted, parked, held.


def test_a_free_key_is_granted(key: Key):
    assert key.acquire("a") == Granted(START)
    assert key.holders == ["a"]
    assert key.document.holders[0].expiry == START + TTL


def test_who_finds_it_held_is_parked_with_its_message(busy: Key):
    assert busy.acquire("e") == Parked(4, (Rival("a", 0, TTL, START),))
    assert busy.in_line == ["b", "c", "d", "e"]
    assert busy.messages["e"] == b"message of e"


def test_who_brings_no_message_is_told_who_holds_it_and_nothing_is_kept(key: Key):
    key.acquire("a")
    key.now += 10 * SECOND
    assert key.acquire("b", message=None) == Held((Rival("a", 10 * SECOND, 20 * SECOND, START),))
    assert not key.entries
    assert not key.messages


def test_who_only_asks_under_a_lower_limit_leaves_no_place_unoffered():
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
    assert [rival.id for rival in answer.by] == ["a", "c", "d"]
    assert answer.by[2] == Rival("d", 0, 4 * SECOND, phase="queued")


def test_an_id_that_waits_is_never_answered_held(busy: Key):
    assert busy.acquire("b", message=None) == Parked(1, (Rival("a", 0, TTL, START),))
    assert busy.messages["b"] == b"message of b"
    assert not busy.last.kept


def test_a_newcomer_is_not_parked_behind_more_than_may_wait(busy: Key):
    assert busy.acquire("e", max_waiting=3) == Full(3, (Rival("a", 0, TTL, START),))
    assert busy.in_line == ["b", "c", "d"]
    assert "e" not in busy.messages
    assert busy.acquire("e", max_waiting=4) == Parked(4, (Rival("a", 0, TTL, START),))


@pytest.mark.parametrize("id", ["b", "d"])
def test_a_full_line_keeps_who_waits_in_it(busy: Key, id: str):
    assert isinstance(busy.acquire(id, max_waiting=1), Parked)


@pytest.mark.parametrize("how", [{"redelivered": True}, {"promoted": "of a store before"}])
def test_a_full_line_takes_what_the_broker_brings_again(busy: Key, how: dict[str, object]):
    assert isinstance(busy.acquire("e", max_waiting=3, **how), Parked)


def test_a_full_line_is_nothing_to_whom_a_place_is_free(key: Key):
    assert isinstance(key.acquire("a", max_waiting=0), Granted)


def test_a_broken_lease_frees_its_place_for_the_next_in_line(busy: Key):
    assert busy.ask(Break("a")) == Done(True)
    assert busy.last.wake == ("b",)
    assert busy.holders == []
    assert busy.release("a") == Done(False)


def test_the_copy_of_a_broken_run_stays_in_line(busy: Key):
    busy.redelivered("a")
    busy.ask(Break("a"))
    assert busy.in_line == ["b", "c", "d", "a"]
    assert not busy.tombstones


def test_breaking_what_nobody_holds_only_looks_at_the_clock(busy: Key):
    busy.now += TTL
    assert busy.ask(Break("nobody")) == Done(False)
    assert busy.last.wake == ("b",)


def test_a_forgotten_lease_is_put_back_before_those_to_whom_its_place_is_offered(busy: Key):
    (lost,) = busy.document.holders
    busy.ask(Break("a"))
    assert busy.ask(Restore("a", "of a", TTL)) == Done(True)
    assert busy.last.wake == ()
    (restored,) = busy.document.holders
    assert restored == Holder("a", "of a", busy.now + TTL, restored.fence, waited=True)
    assert restored.fence > lost.fence
    assert isinstance(busy.promoted("b"), Parked)
    busy.release("a", "of a")
    assert busy.last.wake == ("b",)
    assert "a" in busy.tombstones


def test_a_forgotten_lease_is_put_back_only_where_there_is_a_place(busy: Key):
    assert busy.ask(Restore("e", "of e", TTL)) == Done(False)
    assert busy.ask(Restore("e", "of e", TTL, limit=2)) == Done(True)
    assert busy.ask(Restore("f", "of f", TTL, limit=2)) == Done(False)
    busy.now += TTL
    assert busy.ask(Restore("f", "of f", TTL)) == Done(True)


def test_who_waits_or_has_finished_meanwhile_gets_no_forgotten_lease_back(busy: Key):
    busy.release("a")
    assert busy.ask(Restore("b", "of b", TTL)) == Done(False)
    assert "b" in busy.in_line
    busy.promoted("b")
    busy.release("b")
    assert busy.ask(Restore("b", "of b", TTL)) == Done(False)


def test_a_forgotten_lease_is_put_back_once(key: Key):
    assert key.ask(Restore("a", "of a", TTL)) == Done(True)
    before = key.document
    assert key.ask(Restore("a", "of a", TTL)) == Done(True)
    assert key.ask(Restore("a", "of another", TTL)) == Done(False)
    assert key.document == before


def test_a_free_place_that_is_offered_is_not_granted_to_a_newcomer(busy: Key):
    busy.release("a")
    assert busy.acquire("e") == Parked(4, (Rival("b", 0, 5 * SECOND, phase="queued"),))
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


def test_a_place_is_granted_to_whom_it_is_offered(busy: Key):
    busy.release("a")
    assert busy.last.wake == ("b",)
    assert isinstance(busy.promoted("c"), Parked)
    assert isinstance(busy.promoted("b"), Granted)
    assert busy.in_line == ["c", "d"]
    assert "b" not in busy.messages


def test_parking_again_keeps_the_place_in_line_and_takes_the_new_message(busy: Key):
    assert busy.redelivered("c", message=b"newer") == Parked(2, (Rival("a", 0, TTL, START),))
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


def test_a_promoted_copy_whose_lease_lapsed_unheard_must_ask_again_as_redelivered(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.now += TTL
    assert busy.look(Acquire("b", "B", TTL, promoted="today")).answer == Stale()
    assert isinstance(busy.redelivered("b", "B"), Parked)


# Fence.


def test_a_fence_is_the_time_of_its_grant(key: Key):
    key.acquire("a")
    key.release("a")
    key.now += SECOND
    assert key.acquire("b") == Granted(START + SECOND)


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
    assert key.ask(Renew("a", "A", TTL)) == Done(True)
    assert key.document.holders[0].expiry == START + 50 * SECOND


def test_renew_never_shortens(key: Key):
    key.acquire("a")
    assert key.ask(Renew("a", "A", SECOND)) == Done(True)
    assert key.document.holders[0].expiry == START + TTL


def test_renew_never_revives(key: Key):
    key.acquire("a")
    key.now += TTL
    assert key.ask(Renew("a", "A", TTL)) == Done(False)
    assert key.document.holders[0].expiry == START + TTL


@pytest.mark.parametrize(("id", "token"), [("a", "B"), ("b", "A"), ("b", "B")])
def test_only_the_holder_renews(busy: Key, id: str, token: str):
    before = busy.document
    busy.now += SECOND
    assert busy.ask(Renew(id, token, TTL)) == Done(False)
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
    assert busy.release("a") == Done(True)
    assert busy.holders == []
    assert busy.last.wake == ("b",)
    assert busy.entries["b"].offer_until == busy.now + 5 * SECOND


@pytest.mark.parametrize(("id", "token"), [("a", "B"), ("b", "B"), ("x", "X")])
def test_a_release_by_a_stranger_changes_nothing(busy: Key, id: str, token: str):
    before = busy.document
    assert busy.release(id, token) == Done(False)
    assert busy.last == Transition(before, Done(False), due=START + TTL)


def test_a_late_finisher_cannot_release_the_next_holder(busy: Key):
    busy.now += TTL
    busy.reap()
    busy.promoted("b")
    assert busy.release("a") == Done(False)
    assert busy.holders == ["b"]


def test_a_release_after_the_lease_has_lapsed_finds_nothing_and_leaves_no_tombstone(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.now += TTL
    assert busy.release("b") == Done(False)
    assert not busy.tombstones
    assert busy.last.wake == ("c",)


def test_a_repeated_release_finds_nothing_and_wakes_nobody(busy: Key):
    busy.release("a")
    assert busy.release("a") == Done(False)
    assert busy.last.wake == ()


def test_who_never_waited_leaves_no_tombstone(key: Key):
    key.acquire("a")
    key.release("a")
    assert not key.tombstones


def test_who_waited_leaves_a_tombstone(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b")
    assert busy.tombstones.keys() == {"b"}


def test_who_was_redelivered_leaves_a_tombstone(key: Key):
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
    key.release("a", done=False)
    assert not key.tombstones
    assert key.last.wake == ("a",)
    assert isinstance(key.promoted("a"), Granted)


def test_who_waited_and_ended_unfinished_may_come_again(busy: Key):
    busy.release("a")
    busy.promoted("b")
    busy.release("b", done=False)
    assert isinstance(busy.redelivered("b"), Parked)
    assert busy.in_line == ["c", "d", "b"]


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


# Offers.


def test_offers_double_up_to_ten_minutes(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    lengths = []
    for _ in range(12):
        assert key.last.wake == ("b",)
        lengths.append((key.entries["b"].offer_until - key.now) // SECOND)
        nobody_comes(key, 1)
    assert lengths == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]


def test_offers_scale_with_the_first_one(key: Key):
    key.acquire("a")
    key.acquire("b")
    for offers, length in ((0, 1), (1, 2), (6, 64), (7, 120), (30, 120)):
        key.entries["b"] = replace(key.entries["b"], offers=offers)
        transition = step(key.document, key.line("a"), Release("a", "A"), key.now, offer=SECOND)
        assert transition.entries[0].offer_until == key.now + length * SECOND


def test_an_open_offer_is_not_made_again(busy: Key):
    busy.release("a")
    assert busy.reap(5 * SECOND - 1) == ()
    assert busy.reap(1) == ("b",)


def test_after_eight_offers_it_steps_aside_for_those_who_wait_behind(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE - 1)
    assert busy.last.aside == ()
    nobody_comes(busy, 1)
    assert busy.last.aside == ("b",)
    assert busy.last.wake == ("c",)
    assert busy.in_line == ["c", "d"]
    assert busy.aside == ["b"]


def test_it_does_not_step_aside_when_nobody_waits_behind(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    nobody_comes(key, 20)
    assert key.in_line == ["b"]
    assert key.entries["b"].offers == 21


def test_no_more_than_the_limit_step_aside_at_once(busy: Key):
    for id in "bcd":
        busy.entries[id] = replace(busy.entries[id], offers=OFFERS_IN_LINE)
    busy.release("a")
    assert busy.last.aside == ("b",)
    assert busy.last.wake == ("c",)


def test_who_stepped_aside_is_offered_a_free_place_every_ten_minutes_without_keeping_it_from_others(
    busy: Key,
):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE)
    assert busy.reap(TEN_MINUTES) == ("c", "b")
    assert busy.aside == ["b"]
    assert isinstance(busy.promoted("c"), Granted)


def test_who_stepped_aside_is_not_offered_a_place_when_none_is_free(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE)
    busy.promoted("c")
    busy.ask(Renew("c", "C", 2 * TEN_MINUTES))
    assert busy.reap(TEN_MINUTES) == ()


def test_after_64_offers_aside_it_is_only_listed(key: Key):
    for id in "abc":
        key.acquire(id)
    key.release("a")
    nobody_comes(key, OFFERS_IN_LINE)
    key.promoted("c")
    key.release("c")
    wakes = 0
    while key.last.due is not None:
        wakes += key.reap(key.last.due - key.now).count("b")
    assert wakes == OFFERS_ASIDE
    assert key.entries["b"].offer_until == NEVER
    assert key.entries["b"].offers == OFFERS_IN_LINE + OFFERS_ASIDE
    assert isinstance(key.promoted("b"), Granted)


def test_who_steps_back_in_is_granted_any_free_place(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE)
    assert busy.in_line == ["c", "d"]
    assert isinstance(busy.promoted("b"), Granted)
    assert isinstance(busy.promoted("c"), Parked)


def test_who_steps_back_in_and_finds_no_place_has_its_old_place_in_line(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE)
    busy.promoted("c")
    assert busy.promoted("b") == Parked(1, (Rival("c", 0, TTL, busy.document.fence),))
    assert busy.in_line == ["b", "d"]
    assert busy.entries["b"].offers == 0


def test_who_comes_with_its_eighth_offer_overdue_gets_the_place(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE - 1)
    assert busy.last.due is not None
    busy.now = busy.last.due
    assert isinstance(busy.promoted("b"), Granted)
    assert busy.aside == []


# Limit.


def test_a_limit_lets_so_many_in():
    key = Key(limit=2)
    answers = [key.acquire(id) for id in "abc"]
    assert [type(answer) for answer in answers] == [Granted, Granted, Parked]


def test_a_raised_limit_offers_the_new_places(busy: Key):
    assert isinstance(busy.acquire("e", limit=3), Parked)
    assert busy.last.wake == ("b", "c")
    assert busy.document.limit == 3


def test_a_lowered_limit_evicts_nobody():
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
    assert busy.ask(Remove("b")) == Done(True)
    assert busy.in_line == ["c", "d"]
    assert "b" not in busy.messages
    assert busy.promoted("b") == Stale()
    assert busy.redelivered("b") == Stale()


def test_removing_the_head_hands_its_offer_on(busy: Key):
    busy.release("a")
    busy.ask(Remove("b"))
    assert busy.last.wake == ("c",)


def test_removing_a_stranger_finds_nothing(busy: Key):
    before = busy.document
    assert busy.ask(Remove("x")) == Done(False)
    assert busy.last == Transition(before, Done(False), due=START + TTL)


def test_removing_does_not_end_a_run(key: Key):
    key.acquire("a")
    assert key.ask(Remove("a")) == Done(False)
    assert key.holders == ["a"]


# Time.


def test_a_dead_lease_is_dropped_and_its_place_offered(busy: Key):
    assert busy.reap(TTL - 1) == ()
    assert busy.reap(1) == ("b",)
    assert busy.holders == []


def test_a_dead_lease_does_not_stop_a_newcomer(key: Key):
    key.acquire("a")
    key.now += TTL
    assert isinstance(key.acquire("b"), Granted)


def test_nothing_is_due_while_nobody_waits(key: Key):
    key.acquire("a")
    assert key.last.due is None


def test_nothing_is_due_when_the_last_in_line_has_its_place(key: Key):
    key.acquire("a")
    key.acquire("b")
    key.release("a")
    key.promoted("b")
    assert key.last.due is None


def test_due_is_when_the_holder_dies_or_the_offer_ends(busy: Key):
    assert busy.last.due == START + TTL
    busy.release("a")
    assert busy.last.due == START + 5 * SECOND


def test_due_is_when_the_next_offer_to_one_aside_is_to_be_made(busy: Key):
    busy.release("a")
    nobody_comes(busy, OFFERS_IN_LINE)
    for id in "cd":
        busy.ask(Remove(id))
    assert busy.last.due == busy.now + TEN_MINUTES
    busy.acquire("e")
    assert busy.last.due == busy.now + TTL


# All of it, in any order.

IDS = st.sampled_from("abcdefghijkl")
TOKENS = st.sampled_from(["1", "2"])
TIMES = st.sampled_from([0, 1, 2 * SECOND, 5 * SECOND, 40 * SECOND, 700 * SECOND, -3 * SECOND])


class AnyHistory(RuleBasedStateMachine):
    """One key asked at random. What `_hold` says must hold after every step."""

    @initialize(limit=st.integers(1, 3))
    def begin(self, limit: int) -> None:
        self.key = Key(limit)
        self.fence = 0

    @rule(
        id=IDS,
        token=TOKENS,
        limit=st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3]),
        promoted=st.sampled_from([None, "today", "yesterday"]),
        redelivered=st.booleans(),
        message=st.sampled_from([b"message", b"message", b"message", None]),
    )
    def acquire(
        self, id: str, token: str, limit: int, promoted: str | None, redelivered: bool, message: bytes | None
    ) -> None:
        limit = limit or self.key.document.limit
        self._ask(Acquire(id, token, TTL, limit, redelivered, promoted, message))

    @rule(ids=st.lists(IDS, min_size=4, max_size=12, unique=True))
    def many_come(self, ids: list[str]) -> None:
        for id in ids:
            self._ask(Acquire(id, "1", TTL, self.key.document.limit, message=b"message"))

    @rule(id=IDS, token=TOKENS, ttl=st.sampled_from([SECOND, TTL, 20 * TTL]))
    def renew(self, id: str, token: str, ttl: int) -> None:
        self._ask(Renew(id, token, ttl))

    @rule(id=IDS, token=TOKENS, done=st.booleans())
    def release(self, id: str, token: str, done: bool) -> None:
        self._ask(Release(id, token, done))

    @rule(position=st.integers(0, 2), done=st.booleans())
    def a_holder_releases(self, position: int, done: bool) -> None:
        for holder in self.key.document.holders[position : position + 1]:
            self._ask(Release(holder.id, holder.token, done))

    @rule(token=TOKENS)
    def an_offer_is_taken(self, token: str) -> None:
        for entry in [e for e in self.key.entries.values() if e.offer_until > self.key.now][:1]:
            ask = Acquire(entry.id, token, TTL, self.key.document.limit, promoted="today", message=b"message")
            self._ask(ask)

    @rule(id=IDS)
    def remove(self, id: str) -> None:
        self._ask(Remove(id))

    @rule()
    def reap(self) -> None:
        self._ask(Reap())

    @rule(time=TIMES)
    def time_passes(self, time: int) -> None:
        self.key.now += time

    @rule()
    def the_reaper_comes_when_it_is_due(self) -> None:
        if hasattr(self.key, "last") and self.key.last.due is not None:
            self.key.now = max(self.key.now, self.key.last.due)
            self._ask(Reap())

    def _ask(self, operation: Operation) -> None:
        key = self.key
        limit = operation.limit if isinstance(operation, Acquire) else 1
        assert key.look(operation) == key.look(operation, count=reach(key.document, limit))
        before, entries, now = key.document, dict(key.entries), key.now
        key.ask(operation)
        assert set(key.messages) == set(key.entries)
        self._check_grant(operation, entries)
        self._check_answer(operation)
        self._check_places(operation)
        self._check_reaper(now)
        for holder in before.holders:
            is_asked = not isinstance(operation, Reap) and operation.id == holder.id
            if holder.expiry > now and not is_asked:
                assert holder in key.document.holders

    def _check_grant(self, operation: Operation, entries: dict[str, Entry]) -> None:
        """One at a time, with a greater fence, a place that was free, and nobody passed on the way to it."""
        key, answer = self.key, self.key.last.answer
        new = [holder for holder in key.document.holders if holder.fence > self.fence]
        if not new:
            return
        (holder,) = new
        assert isinstance(operation, Acquire)
        assert (holder.id, holder.token, answer) == (operation.id, operation.token, Granted(holder.fence))
        self.fence = holder.fence
        assert len(key.document.holders) <= operation.limit
        own = entries.get(holder.id)
        if not own or not (own.aside or own.id in key.last.aside):
            others = [key.entries[id] for id in key.in_line if id not in key.holders]
            passed = [other for other in others if not own or other.seq < own.seq]
            assert len(key.document.holders) + len(passed) <= operation.limit

    def _check_answer(self, operation: Operation) -> None:
        key, last = self.key, self.key.last
        assert not last.kept or isinstance(last.answer, Parked)
        assert len(set(last.wake)) == len(last.wake)
        assert set(last.wake) <= set(key.entries) - set(key.holders)
        if isinstance(last.answer, (Held, Parked)):
            assert isinstance(operation, Acquire)
            assert isinstance(last.answer, Parked) == (operation.id in key.entries)
            assert all(rival.remaining > 0 for rival in last.answer.by)
        if isinstance(last.answer, Held):
            assert last.answer.by
        if isinstance(last.answer, Parked):
            assert last.answer.position == 1 + key.in_line.index(operation.id)
        if isinstance(last.answer, Granted):
            again = key.look(operation)
            assert again.answer == last.answer
            assert set(again.wake) <= set(
                key.aside
            )  # more of those, if more are overdue than places are free

    def _check_places(self, operation: Operation) -> None:
        """No place is free while somebody waits unoffered."""
        key, limit = self.key, self.key.document.limit
        if isinstance(operation, Renew):
            return
        assert all(holder.expiry > key.now for holder in key.document.holders)
        waiting = [key.entries[id] for id in key.in_line if id not in key.holders]
        for entry in waiting[: max(limit - len(key.holders), 0)]:
            assert entry.offer_until > key.now

    def _check_reaper(self, now: int) -> None:
        """The reaper has nothing to do before it is due, and always something to do in the end."""
        due = self.key.last.due
        if due is None or due > now:
            early = self.key.look(Reap(), now=due - 1 if due is not None else NEVER - 1)
            assert (early.wake, early.aside) == ((), ())


@pytest.mark.parametrize("offers", [(OFFERS_IN_LINE, OFFERS_ASIDE), (1, 2)], ids=["as it is", "few offers"])
def test_any_history_keeps_what_is_promised(offers: tuple[int, int]):
    with mock.patch.multiple(core, OFFERS_IN_LINE=offers[0], OFFERS_ASIDE=offers[1]):
        run_state_machine_as_test(AnyHistory, settings=settings(max_examples=150, stateful_step_count=40))
