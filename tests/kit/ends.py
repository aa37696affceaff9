"""Ends of a wait: a task gives up, or a newer one replaces it. Windows: a message waits for newer calls."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Answer, Applied, Enqueue, Held, Over, Parked, Stale
from tests.kit.subject import LONG, OTHER, SHORT, Key, Subject, fence_of, woken

AT_ONCE = 0.0


@pytest.mark.proves("ends of a wait")
class EndPromises(Subject):
    def test_a_task_gives_up_at_its_time_and_its_delivery_ends_it(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", gives_up_in=LONG)
        key.park("c", message=b"the message", gives_up_in=SHORT)
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("c", b"the message")
        answer = key.follow(wake).answer
        assert isinstance(answer, Over)
        assert (answer.newer, [owner.id for owner in answer.by]) == ("", ["a"])
        assert key.inspect().all_waiting == 1

    def test_a_newer_message_replaces_the_one_that_waits(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", message=b"the message", replaces=True)
        (wake,) = key.park("c", replaces=True).wake
        assert (wake.id, wake.message) == ("b", b"the message")
        answer = key.follow(wake).answer
        assert isinstance(answer, Over)
        assert (answer.newer, [owner.id for owner in answer.by]) == ("c", ["a"])
        assert [waiting.is_replaceable for waiting in key.inspect().line] == [True]
        assert woken(key.release("a")) == ["c"]

    def test_a_message_that_joined_the_line_on_other_terms_is_not_replaced(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b")
        assert not key.park("c", replaces=True).wake
        assert [waiting.is_replaceable for waiting in key.inspect().line] == [False, True]

    def test_a_message_that_another_has_passed_is_no_newer_call_and_is_not_replaced(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a/1")
        key.park("b/1", message=b"the message", replaces=True)
        (wake,) = key.release("a/1").wake
        fence_of(key.acquire("c/1", order="any"))
        assert key.inspect().newer_than("c/1") is None, "b has an offer"
        assert isinstance(key.follow(wake).answer, Parked)
        assert key.inspect().newer_than("c/1") is None
        assert not key.park("d/1", replaces=True).wake
        assert key.inspect().newer_than("c/1") == "d"

    def test_the_copy_that_ends_a_wait_gets_the_same_answer_again_and_other_copies_are_stale(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", replaces=True)
        (wake,) = key.park("c", replaces=True).wake
        for _ in range(2):
            again = key.acquire("b", promoted=wake.epoch, redelivered=True, message=wake.message)
            assert isinstance(again.answer, Over)
        assert key.follow(wake, OTHER).answer == Stale()
        assert key.is_stale("b", redelivered=True)
        key.release("b")
        again = key.acquire("b", promoted=wake.epoch, redelivered=True, message=wake.message)
        assert again.answer == Stale(), "its task has ended"

    def test_a_task_that_is_over_is_woken_until_a_delivery_ends_it(self) -> None:
        key = self.key(offer=SHORT)
        key.needs_line()
        key.hold("a")
        key.park("b", replaces=True)
        assert woken(key.park("c", replaces=True)) == ["b"]
        for _ in range(2):
            assert key.reap_until_woken().id == "b"
        assert isinstance(key.follow(key.reap_until_woken()).answer, Over)

    def test_a_task_that_has_begun_is_neither_replaced_nor_given_up(self) -> None:
        key = self.key()
        key.needs_line()
        begun = key.acquire(
            "a",
            ttl=SHORT,
            message=b"message",
            at_once=True,
            recovers=True,
            replaces=True,
            gives_up_in=AT_ONCE,
        )
        fence_of(begun)
        key.wait_until_expired()
        wake = key.reap_until_woken()
        key.park("b", replaces=True)
        assert not key.reap().wake
        fence_of(key.follow(wake))

    def test_calls_gather_in_a_window_with_the_newest_message(self) -> None:
        key = self.key()
        key.needs_line()
        assert isinstance(call(key, "a", b"1"), Parked)
        assert isinstance(call(key, "a", b"2"), Parked)
        held = call(key, "b", b"3")
        assert isinstance(held, Held)
        assert [owner.id for owner in held.by] == ["a"]
        assert isinstance(call(key, "a", b"4", wait=SHORT), Parked)
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("a", b"4")
        assert call(key, "a", b"5") == Applied(False)

    def test_a_window_closes_at_most_so_long_after_it_was_opened(self) -> None:
        key = self.key()
        key.needs_line()
        call(key, "a", b"1")
        call(key, "a", b"2", max_wait=AT_ONCE)
        assert key.reap_until_woken().message == b"2"

    def test_a_call_beside_a_published_one_opens_the_next_window(self) -> None:
        key = self.key()
        key.needs_line()
        call(key, "a", b"1", wait=SHORT)
        wake = key.reap_until_woken()
        assert isinstance(call(key, "b", b"2", wait=AT_ONCE), Parked)
        assert not key.reap().wake
        fence_of(key.follow(wake, late=False))
        assert woken(key.release("a", ending="open")) == ["b"]


def call(key: Key, id: str, message: bytes, *, wait: float = LONG, max_wait: float = LONG) -> Answer:
    waits = int(wait * 1e6), int(max_wait * 1e6)
    return key.store.apply(key.name, Enqueue(id, message, waits=waits)).answer
