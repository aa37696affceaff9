"""Nothing is lost, and order: a parked message is kept, and its turn comes when it is due."""

from __future__ import annotations

import os

import pytest

from celery_exclusive.core.operations import Full, Granted, Held, Parked
from tests.kit.subject import (
    LONG,
    OTHER,
    SHORT,
    Subject,
    fence_of,
    found,
    until,
    woken,
)

MESSAGES = {
    "empty": b"",
    "text": "ünï — コード".encode(),
    "every byte": bytes(range(256)),
    "separators": b"a b:c|d\x00e\r\nf,g}{%s\\",
    "1 MB": os.urandom(2**20),
}


class WaitingPromises(Subject):
    @pytest.mark.proves("stored before acknowledged")
    @pytest.mark.parametrize("kind", MESSAGES)
    def test_a_parked_message_is_returned_as_it_was(self, kind: str) -> None:
        key = self.key()
        key.hold("a")
        key.park("b", message=MESSAGES[kind])
        (wake,) = self.key().release("a").wake
        assert wake.message == MESSAGES[kind]
        assert (wake.key, wake.id) == (key.name, "b")
        assert wake.epoch

    def test_a_parked_message_outlives_the_client_that_parked_it(self) -> None:
        holder, parker = self.key(), self.key()
        holder.hold("a")
        parker.park("b")
        parker.store.close()
        assert woken(holder.release("a")) == ["b"]

    def test_the_newest_message_of_a_waiting_id_is_the_one_that_counts(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b", message=b"old")
        key.park("b", message=b"new")
        (wake,) = key.release("a").wake
        assert wake.message == b"new"

    def test_a_request_that_does_not_wait_leaves_nothing(self) -> None:
        key = self.key()
        key.hold("a")
        assert isinstance(key.acquire("b", OTHER).answer, Held)
        assert key.inspect().waiting == 0
        assert not key.release("a").wake

    def test_a_free_key_is_granted_even_to_a_request_that_would_wait(self) -> None:
        key = self.key()
        assert isinstance(key.acquire("a", message=b"message").answer, Granted)
        assert key.inspect().waiting == 0

    def test_behind_a_full_line_no_newcomer_is_parked(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        answer = key.acquire("c", message=b"message", max_waiting=1).answer
        assert isinstance(answer, Full)
        assert (answer.waiting, [owner.id for owner in answer.by]) == (1, ["a"])
        assert isinstance(key.acquire("c", message=b"message", max_waiting=2).answer, Parked)

    def test_the_answer_to_a_parked_request_names_its_position_and_the_owners(self) -> None:
        key = self.key()
        key.hold("a")
        for position, id in enumerate("bcd", 1):
            answer = key.park(id).answer
            assert isinstance(answer, Parked)
            assert answer.position == position
            (owner,) = answer.by
            assert owner.id == "a"
            assert owner.age >= 0
            assert 0 < owner.remaining <= LONG * 1e6

    def test_the_answer_to_a_refused_request_names_the_owners(self) -> None:
        key = self.key()
        for id in "ab":
            key.hold(id, limit=2)
        answer = key.acquire("c", limit=2).answer
        assert isinstance(answer, Held)
        assert [owner.id for owner in answer.by] == ["a", "b"]

    @pytest.mark.proves("order")
    def test_waiting_tasks_run_in_the_order_in_which_they_arrived(self) -> None:
        key = self.key()
        key.hold("first")
        names = [f"{number * 7 % 12} waits" for number in range(12)]
        for name in names:
            key.park(name)
        order, running = [], "first"
        while (reply := key.release(running)).wake:
            (wake,) = reply.wake
            fence_of(key.follow(wake))
            order.append(wake.id)
            running = wake.id
        assert order == names

    def test_a_release_offers_the_slot_to_the_head_of_the_line_alone(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        assert woken(key.release("a")) == ["b"]

    def test_every_free_slot_is_offered(self) -> None:
        key = self.key()
        key.needs_line()
        for id in "abc":
            key.hold(id, limit=3)
        for id in "defg":
            key.acquire(id, limit=3, message=b"message")
        assert [woken(key.release(id)) for id in "abc"] == [["d"], ["e"], ["f"]]

    @pytest.mark.proves("order")
    def test_a_newcomer_never_passes_a_waiting_task(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        answer = key.acquire("newcomer", OTHER).answer
        assert isinstance(answer, Held)
        assert [owner.id for owner in answer.by] == ["b"]
        answer = key.park("newcomer", OTHER).answer
        assert isinstance(answer, Parked)
        assert answer.position == 2
        assert isinstance(key.follow(wake).answer, Granted)
        assert woken(key.release("b")) == ["newcomer"]

    def test_a_waiting_task_cannot_pass_the_one_before_it(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        (wake,) = key.release("a").wake
        answer = key.park("c", OTHER, redelivered=True).answer
        assert isinstance(answer, Parked)
        assert answer.position == 2
        assert isinstance(key.follow(wake).answer, Granted)

    def test_a_waiting_task_goes_on_waiting_even_if_its_redelivery_would_not(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b", message=b"the message")
        assert isinstance(key.acquire("b", OTHER, redelivered=True, message=None).answer, Parked)
        (wake,) = key.release("a").wake
        assert (wake.id, wake.message) == ("b", b"the message")

    def test_a_waiting_task_that_is_redelivered_acquires_the_slot_when_it_is_its_turn(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.release("a")
        fence_of(key.acquire("b", OTHER, redelivered=True, message=b"message"))
        assert key.inspect().waiting == 0

    def test_a_task_that_acquires_its_slot_without_an_offer_gets_none(self) -> None:
        key = self.key_of_dying_holder("b")
        key.wait_until_expired()
        reply = key.acquire("b", OTHER, redelivered=True, message=b"message")
        assert isinstance(reply.answer, Granted)
        assert not reply.wake

    def test_the_answer_to_a_refused_request_says_for_how_long_the_key_is_held(self) -> None:
        key = self.key()
        key.hold("a")

        def age() -> int:
            answer = key.acquire("b", OTHER).answer
            assert isinstance(answer, Held)
            return answer.by[0].age

        until(lambda: age() > SHORT * 1e6, "the lease grows older")

    def test_a_raised_limit_offers_slots_to_waiting_tasks(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        reply = key.acquire("d", limit=3, message=b"message")
        assert isinstance(reply.answer, Parked)
        assert woken(reply) == ["b", "c"]

    @pytest.mark.proves("liveness")
    def test_the_reaper_offers_the_key_of_a_dead_holder(self) -> None:
        key = self.key_of_dying_holder("b", "c")
        assert key.reap_until_woken().id == "b"

    @pytest.mark.proves("liveness")
    def test_the_next_request_offers_the_key_of_a_dead_holder(self) -> None:
        key = self.key_of_dying_holder("b", "c")
        key.wait_until_expired()
        reply = key.acquire("d", message=b"message")
        assert isinstance(reply.answer, Parked)
        assert woken(reply) == ["b"]

    def test_a_late_finisher_wakes_the_next_in_line(self) -> None:
        key = self.key_of_dying_holder("b")
        key.wait_until_expired()
        reply = key.release("dying", OTHER)
        assert not found(reply)
        assert woken(reply) == ["b"]

    @pytest.mark.proves("no slot, no polling")
    def test_while_the_holder_lives_no_task_is_woken(self) -> None:
        key = self.key(offer=SHORT)
        key.hold("a")
        key.park("b")
        assert key.renew("a")
        assert not key.reap().wake
        assert not key.park("c").wake


class RemovePromises(Subject):
    def test_a_removed_id_leaves_the_line(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        assert found(key.remove("b"))
        assert key.inspect().waiting == 1
        assert woken(key.release("a")) == ["c"]

    def test_a_removed_offer_goes_to_the_next(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        key.release("a")
        assert woken(key.remove("b")) == ["c"]

    def test_a_holder_cannot_be_removed_from_a_line_it_is_not_in(self) -> None:
        key = self.key()
        key.hold("a")
        assert not found(key.remove("a"))
        assert key.holders() == ["a"]

    def test_copies_of_a_removed_id_are_stale(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert found(key.remove("b"))
        assert key.is_stale("b", promoted=wake.epoch)
        assert key.is_stale("b", redelivered=True)

    def test_a_task_that_is_removed_unfinished_may_run_again(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert found(key.remove("b", ending="open"))
        assert not found(key.remove("b", ending="open"))
        assert key.is_stale("b", promoted=wake.epoch)
        assert not key.is_stale("b", redelivered=True)
