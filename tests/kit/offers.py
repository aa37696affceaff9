"""Liveness: an offer that no worker accepts is repeated, and in the end does not block the others."""

from __future__ import annotations

import pytest

from celery_exclusive.core.key_state import OFFERS_IN_LINE
from celery_exclusive.core.operations import Granted, Parked
from tests.kit.subject import LONG, OTHER, SWIFT, Subject, fence_of, found, woken


class OfferPromises(Subject):
    def test_an_offer_lasts_until_it_expires(self) -> None:
        key = self.key(offer=LONG)
        key.hold("a")
        key.park("b")
        key.park("c")
        assert woken(key.release("a")) == ["b"]
        assert not key.reap().wake
        assert not key.park("d").wake

    def test_an_offer_without_an_answer_is_made_again_with_the_same_message(self) -> None:
        key = self.key(offer=SWIFT)
        key.hold("a")
        key.park("b", message=b"the message")
        key.release("a")
        for _ in range(3):
            wake = key.reap_until_woken()
            assert (wake.key, wake.id, wake.message) == (key.name, "b", b"the message")

    def test_an_expired_offer_can_still_be_accepted(self) -> None:
        key = self.key(offer=SWIFT)
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        again = key.reap_until_woken()
        assert isinstance(key.follow(wake).answer, Granted)
        assert key.is_stale("b", OTHER, promoted=again.epoch)

    def test_the_only_task_in_line_is_offered_the_slot_for_ever(self) -> None:
        key = self.key(offer=SWIFT / 4)
        key.hold("a")
        key.park("b")
        key.release("a")
        for _ in range(OFFERS_IN_LINE + 2):
            assert key.reap_until_woken().id == "b"
        assert key.inspect().aside == 0

    @pytest.mark.proves("stepping aside")
    def test_a_task_that_accepts_no_offer_steps_aside_for_the_others(self) -> None:
        key = self.with_aside("b")
        snapshot = key.inspect()
        assert (snapshot.waiting, snapshot.aside) == (1, 1)

    def test_a_task_aside_acquires_any_free_slot_when_it_is_delivered(self) -> None:
        key = self.with_aside("b")
        fence_of(key.acquire("b", OTHER, redelivered=True, message=b""))
        snapshot = key.inspect()
        assert (snapshot.waiting, snapshot.aside) == (1, 0)

    def test_a_task_aside_that_finds_no_free_slot_is_in_line_again_at_its_old_position(self) -> None:
        key = self.with_aside("b")
        fence_of(key.acquire("last", redelivered=True))
        key.park("newcomer")
        answer = key.park("b", redelivered=True).answer
        assert isinstance(answer, Parked)
        assert answer.position == 1
        snapshot = key.inspect()
        assert (snapshot.waiting, snapshot.aside) == (2, 0)

    def test_a_task_aside_is_offered_a_slot_again(self) -> None:
        key = self.with_aside("b")
        assert found(key.remove("last"))
        assert key.reap_until_woken().id == "b"

    def test_a_task_aside_passes_an_offer_without_an_answer(self) -> None:
        key = self.with_aside("b", "c")
        fence_of(key.acquire("last", redelivered=True))
        key.park("b", redelivered=True)
        assert "b" in woken(key.release("last"))  # and "c", if its next offer is due
        fence_of(key.acquire("c", OTHER, redelivered=True, message=b""))

    def test_no_task_steps_aside_before_it_has_had_its_offers(self) -> None:
        key = self.key(offer=SWIFT)
        key.hold("a")
        key.park("b")
        key.park("last")
        offers = len(key.release("a").wake)
        while not (reply := key.reap()).aside:
            offers += woken(reply) == ["b"]
            assert offers < OFFERS_IN_LINE
        assert offers == OFFERS_IN_LINE - 1  # none counts as five

    def test_a_task_aside_can_be_removed(self) -> None:
        key = self.with_aside("b")
        assert found(key.remove("b"))
        assert key.inspect().aside == 0

    def test_all_tasks_aside_are_counted(self) -> None:
        names = [f"aside {number}" for number in range(5)]
        key = self.with_aside(*names)
        snapshot = key.inspect()
        assert (snapshot.waiting, snapshot.aside) == (1, len(names))
