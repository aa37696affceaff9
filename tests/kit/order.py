"""Order of publishing: a message takes its place in line before it is sent."""

from __future__ import annotations

from secrets import token_hex

import pytest

from celery_exclusive.core.operations import Answer, Applied, Enqueue, Granted, Parked
from tests.kit.subject import LONG, OTHER, SHORT, Key, Subject, fence_of, found, woken

SEND, IS_KNOWN = Applied(True), Applied(False)


@pytest.mark.proves("order of publishing")
class OrderPromises(Subject):
    def test_a_message_for_a_free_key_is_to_be_sent_and_holds_its_place(self) -> None:
        key = self.ordered_key()
        assert enqueue(key, "a") == SEND
        key.park("newcomer")
        fence_of(key.acquire("a", message=b"a"))

    def test_a_message_for_a_busy_key_waits_in_the_store(self) -> None:
        key = self.ordered_key()
        key.hold("a")
        assert isinstance(enqueue(key, "b"), Parked)
        (wake,) = key.release("a").wake
        assert (wake.id, wake.message) == ("b", b"message of b")

    def test_messages_are_granted_in_the_order_in_which_they_were_enqueued(self) -> None:
        key = self.ordered_key()
        ids = ["a", "b", "c", "d"]
        assert [isinstance(enqueue(key, id), Parked) for id in ids] == [False, True, True, True]
        for id in reversed(ids[1:]):
            assert isinstance(key.acquire(id, message=b"again", redelivered=True).answer, Parked)
        for id, later in zip(ids, [*ids[1:], None], strict=True):
            fence_of(key.acquire(id, redelivered=True))
            assert woken(key.release(id)) == ([later] if later else [])

    def test_a_request_that_is_repeated_gets_the_same_answer(self) -> None:
        key = self.ordered_key()
        assert [enqueue(key, "a") for _ in range(2)] == [SEND, SEND]
        assert [isinstance(enqueue(key, "b"), Parked) for _ in range(2)] == [True, True]
        assert key.inspect().waiting == 2
        fence_of(key.acquire("a", late=False))
        assert enqueue(key, "a") == IS_KNOWN

    @pytest.mark.parametrize("late", [True, False])
    def test_a_message_that_was_sent_once_runs_again_if_the_broker_brings_it_back(
        self, *, late: bool
    ) -> None:
        key = self.ordered_key()
        assert enqueue(key, "a") == SEND
        fence_of(key.acquire("a", promoted=key.store.epoch(), late=late))
        assert found(key.release("a"))
        assert enqueue(key, "a") == IS_KNOWN
        fence_of(key.acquire("a", OTHER, redelivered=True))

    def test_a_dead_run_keeps_its_place(self) -> None:
        key = self.ordered_key()
        for id in ("a", "b"):
            enqueue(key, id)
        answer = key.acquire("a", ttl=SHORT, message=b"a", recovers=True, order="published").answer
        assert isinstance(answer, Granted)
        key.wait_until_expired()
        assert key.reap_until_woken().id == "a"

    def test_a_message_behind_a_run_that_dies_is_offered_by_a_sweep(self) -> None:
        key, ttl = self.ordered_key(), SHORT
        key.hold("a", ttl=ttl)
        while not isinstance(enqueue(key, "b"), Parked):  # the lease had expired before the message came
            key, ttl = self.key(f"key {token_hex(4)}"), ttl * 2
            key.hold("a", ttl=ttl)
        key.wait_until_expired()
        assert key.reap_until_woken().id == "b"

    def test_order_any_grants_a_free_slot_to_the_first_that_asks(self) -> None:
        key = self.ordered_key()
        key.hold("a")
        key.park("b")
        assert woken(key.release("a")) == ["b"]
        fence_of(key.acquire("c", OTHER, order="any"))
        assert found(key.release("c", OTHER))
        fence_of(key.acquire("b", redelivered=True, ttl=LONG))

    def ordered_key(self) -> Key:
        key = self.key()
        key.needs_line()
        return key


def enqueue(key: Key, id: str) -> Answer:
    return key.store.apply(key.name, Enqueue(id, f"message of {id}".encode())).answer
