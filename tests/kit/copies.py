"""Not twice by our doing: only one of a message's copies may run."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Granted, Held, Parked
from tests.kit.subject import (
    OTHER,
    SHORT,
    TOKEN,
    Key,
    Subject,
    fence_of,
    found,
    until,
    woken,
)


class CopyPromises(Subject):
    def waited(self, key: Key) -> str:
        """Let "b" wait for "a" and run; return the epoch that its promoted copy carries."""
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        fence_of(key.follow(wake))
        return wake.epoch

    @pytest.mark.proves("no second run of ours")
    def test_a_promoted_copy_is_used_once(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        assert key.is_stale("b", OTHER, promoted=epoch)
        assert found(key.release("b"))
        assert key.is_stale("b", OTHER, promoted=epoch)

    def test_a_promoted_copy_is_stale_even_where_another_copy_waits_behind_the_run(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        key.park("b", OTHER, redelivered=True)
        assert key.is_stale("b", "a third token", promoted=epoch, message=b"message")
        assert found(key.release("b"))
        assert key.inspect().waiting == 0

    def test_a_stale_copy_is_not_kept(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        key.is_stale("b", OTHER, promoted=epoch, message=b"message")
        assert key.inspect().waiting == 0

    def test_a_promoted_copy_that_the_broker_delivers_again_waits_behind_its_own_run(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        answer = key.acquire("b", OTHER, redelivered=True, promoted=epoch, message=b"message").answer
        assert isinstance(answer, Parked)
        assert key.holders() == ["b"]

    def test_a_redelivered_copy_of_a_finished_task_that_had_waited_is_stale(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        assert found(key.release("b"))
        assert key.is_stale("b", OTHER, redelivered=True)
        assert key.is_stale("b", OTHER, redelivered=True, promoted=epoch)
        assert key.is_stale("b", OTHER, redelivered=True, message=b"message")

    def test_a_finished_task_is_stale_for_its_own_key_only(self) -> None:
        key, other = self.key(), self.key("another")
        self.waited(key)
        assert found(key.release("b"))
        assert isinstance(other.acquire("b", OTHER, redelivered=True).answer, Granted)

    def test_a_redelivered_copy_of_a_task_that_never_waited_runs_as_in_plain_celery(self) -> None:
        key = self.key()
        key.hold("a")
        assert found(key.release("a"))
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Granted)

    @pytest.mark.proves("copy of a running message")
    def test_a_copy_that_has_found_its_message_running_is_stale_when_that_is_done(self) -> None:
        key = self.key()
        key.hold("a")
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Held)
        assert found(key.release("a"))
        assert key.is_stale("a", OTHER, redelivered=True)

    def test_after_a_redelivery_ran_a_further_one_is_stale(self) -> None:
        key = self.key()
        fence_of(key.acquire("a", redelivered=True))
        assert found(key.release("a"))
        assert key.is_stale("a", OTHER, redelivered=True)

    @pytest.mark.proves("stale request")
    def test_a_request_that_comes_after_its_own_repetition_has_finished_is_stale(self) -> None:
        key = self.key()
        fence_of(key.acquire("a", TOKEN, redelivered=True))
        assert found(key.release("a", TOKEN))
        assert key.is_stale("a", TOKEN)
        assert key.is_stale("a", TOKEN, message=b"message")
        assert key.holders() == []

    def test_a_task_that_is_published_anew_is_not_stale(self) -> None:
        key = self.key()
        self.waited(key)
        assert found(key.release("b"))
        assert isinstance(key.acquire("b", OTHER).answer, Granted)

    def test_an_unfinished_task_that_is_redelivered_is_not_stale(self) -> None:
        key = self.key()
        self.waited(key)
        assert found(key.release("b", ending="open"))
        assert isinstance(key.acquire("b", OTHER, redelivered=True).answer, Granted)

    def test_finished_tasks_are_forgotten_in_the_end(self) -> None:
        key = self.key(tombstone_ttl=SHORT)
        self.waited(key)
        assert found(key.release("b"))
        until(
            lambda: isinstance(key.acquire("b", OTHER, redelivered=True).answer, Granted),
            "the tombstone is gone",
        )

    def test_a_late_message_that_waited_is_offered_again_when_its_run_did_not_finish(self) -> None:
        key = self.key(offer=SHORT)
        self.waited(key)
        assert not key.release("b", ending="open").wake  # the broker has the message, too
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("b", b"message")
        assert isinstance(key.follow(wake, OTHER).answer, Granted)

    def test_a_message_that_is_to_be_redelivered_keeps_the_key_by_itself_or_by_its_copy(self) -> None:
        key = self.key()
        key.hold("a")
        assert found(key.requeue("a"))
        assert key.is_held_against("b")
        fence_of(key.acquire("a", OTHER))
        key.park("a", TOKEN)
        assert woken(key.requeue("a", OTHER)) == ["a"]
        assert key.holders() == []

    def test_an_early_message_that_waited_is_not_kept_when_it_begins(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        fence_of(key.follow(wake, late=False))
        assert not key.release("b", ending="open").wake
        assert key.is_stale("b", OTHER, promoted=wake.epoch)
        assert isinstance(key.acquire("b", OTHER, redelivered=True).answer, Granted)

    @pytest.mark.proves("unflagged redelivery")
    def test_a_copy_that_the_broker_delivers_again_without_saying_so_runs(self) -> None:
        key = self.key()
        epoch = self.waited(key)
        assert found(key.release("b", ending="open"))
        assert isinstance(key.acquire("b", OTHER, promoted=epoch).answer, Granted)

    @pytest.mark.proves("unflagged redelivery")
    def test_a_promoted_copy_runs_where_nothing_is_known_of_it(self) -> None:
        key = self.key()
        assert isinstance(key.acquire("b", promoted=key.store.epoch()).answer, Granted)

    def test_a_finished_task_removes_its_copy_though_its_lease_has_ended(self) -> None:
        key = self.key_of_dying_holder("a", holder="a")
        (wake,) = [key.reap_until_woken()]
        assert not found(key.release("a", OTHER))
        assert key.inspect().waiting == 0
        assert key.is_stale("a", promoted=wake.epoch)

    def test_a_lease_is_released_alone_only_where_no_copy_is_known(self) -> None:
        key = self.key()
        key.hold("a")
        assert found(key.release("a", ending="if_no_copy"))
        key.hold("a")
        key.park("a", OTHER, redelivered=True)
        assert not found(key.release("a", ending="if_no_copy"))
        assert key.holders() == ["a"]
        assert found(key.release("a"))
        assert key.is_stale("a", OTHER, redelivered=True)

    def test_a_copy_behind_its_own_run_leaves_with_it(self) -> None:
        key = self.key()
        key.hold("a", TOKEN)
        key.park("a", OTHER, redelivered=True)
        reply = key.release("a", TOKEN)
        assert found(reply)
        assert not reply.wake
        assert key.inspect().waiting == 0
        assert key.is_stale("a", OTHER, redelivered=True)

    def test_a_copy_behind_its_own_run_is_offered_when_that_run_did_not_finish(self) -> None:
        key = self.key()
        key.hold("a", TOKEN)
        key.park("a", OTHER, redelivered=True)
        (wake,) = key.release("a", TOKEN, ending="open").wake
        assert wake.id == "a"
        assert isinstance(key.follow(wake, OTHER).answer, Granted)

    def test_a_redelivered_copy_that_waited_is_offered_again_when_its_run_did_not_finish(self) -> None:
        key = self.key(offer=SHORT)
        key.hold("a")
        key.park("b", message=b"the message", redelivered=True)
        (wake,) = key.release("a").wake
        fence_of(key.follow(wake, TOKEN))
        key.release("b", TOKEN, ending="open")
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("b", b"the message")
        fence_of(key.follow(wake, OTHER))
        assert found(key.release("b", OTHER))
        assert key.inspect().waiting == 0

    def test_a_copy_behind_its_own_run_is_offered_when_that_run_died(self) -> None:
        key = self.key_of_dying_holder("a", holder="a")
        assert key.reap_until_woken().id == "a"

    def test_a_copy_behind_its_own_run_does_not_hold_up_the_others(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a", TOKEN, limit=2)
        key.hold("b", limit=2)
        assert isinstance(key.acquire("a", OTHER, limit=2, redelivered=True, message=b"").answer, Parked)
        assert isinstance(key.acquire("c", limit=2, message=b"").answer, Parked)
        assert woken(key.release("b")) == ["c"]

    def test_a_copy_of_a_running_task_is_refused_if_it_does_not_wait(self) -> None:
        key = self.key()
        key.hold("a", TOKEN)
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Held)
        assert key.holders() == ["a"]

    def test_a_copy_from_before_the_store_lost_its_data_still_runs(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        self.lose_data()
        reply = key.follow(wake)
        assert isinstance(reply.answer, Granted)
        assert found(key.release("b"))
        assert key.is_stale("b", OTHER, redelivered=True)

    def test_a_store_that_lost_its_data_has_another_epoch(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (before,) = key.release("a").wake
        self.lose_data()
        key.hold("c")
        key.park("d")
        (after,) = key.release("c").wake
        assert after.epoch != before.epoch
