"""A dead run is recovered: its message is kept behind it, and republished by a sweep."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Granted, Held, Parked
from tests.kit.subject import (
    LONG,
    OTHER,
    SHORT,
    TOKEN,
    Key,
    Subject,
    fence_of,
    found,
    woken,
)


@pytest.mark.proves("recovery")
class RecoveryPromises(Subject):
    def test_a_sweep_offers_the_message_of_a_dead_run(self) -> None:
        key = self.dead_run()
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("a", b"the message")

    def test_a_recovered_run_is_done_for_good(self) -> None:
        key = self.dead_run()
        wake = key.reap_until_woken()
        key.follow(wake, OTHER)
        assert found(key.release("a", OTHER))
        assert key.is_stale("a", redelivered=True)

    def test_a_run_that_is_done_is_not_recovered(self) -> None:
        key = self.key()
        key.run("a", ttl=SHORT)
        assert found(key.release("a"))
        assert not key.inspect().is_busy
        key.hold("b")
        assert not key.reap().wake

    def test_waiting_tasks_come_before_a_dead_run(self) -> None:
        key = self.key()
        key.run("a", ttl=SHORT)
        key.park("b")
        assert key.reap_until_woken().id == "b"
        assert key.inspect().waiting == 2

    @pytest.mark.proves("living run over an outage")
    def test_a_dead_run_holds_its_key_until_a_sweep_recovers_it(self) -> None:
        key = self.dead_run()
        assert isinstance(key.acquire("b", OTHER).answer, Held)
        assert isinstance(key.park("b", OTHER).answer, Parked)
        assert not key.reap(recovers_until=0).wake
        assert key.reap_until_woken().id == "b"

    @pytest.mark.promise(
        "However often others ask for the key of a dead run, the next sweep recovers it",
        broke="the code before: on each store but memcached it was put off by a second each time",
    )
    def test_a_request_for_the_key_of_a_dead_run_does_not_put_off_the_sweep(self) -> None:
        key = self.dead_run()
        assert not key.reap(recovers_until=0).wake
        assert isinstance(key.acquire("b", OTHER).answer, Held)
        assert [wake.id for wake in key.reap().wake] == ["a"]

    @pytest.mark.proves("living run over an outage")
    def test_a_run_that_renews_its_lease_before_the_sweep_goes_on(self) -> None:
        key = self.dead_run()
        assert key.renew("a", ttl=LONG)
        assert not key.reap().wake
        assert key.holders() == ["a"]
        assert found(key.release("a"))

    def test_a_run_that_ends_before_the_sweep_is_done(self) -> None:
        key = self.dead_run()
        assert found(key.release("a"))
        assert not key.reap().wake

    @pytest.mark.promise(
        "A dead run is shown with nothing remaining, is released without force and then runs again; "
        "without any worker it holds its key for ten minutes at most",
        name="dead run without a worker",
        broke="the code before: it was not shown, and a release did nothing",
    )
    def test_a_dead_run_is_shown_and_can_be_released_without_a_worker(self) -> None:
        key = self.dead_run()
        (owner,) = key.inspect().holders
        assert (owner.id, owner.remaining) == ("a", 0)
        assert woken(key.force_release("a")) == ["a"]
        assert not key.holders()

    def test_a_request_at_once_is_never_parked(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        refused = key.acquire("b", message=b"message", at_once=True, recovers=True)
        assert isinstance(refused.answer, Held)
        assert not woken(key.release("a"))

    @pytest.mark.proves("unique, recovery")
    def test_a_unique_run_is_recovered_too(self) -> None:
        key = self.key()
        self.begin_unique(key, ttl=SHORT)
        key.wait_until_expired()
        assert isinstance(key.acquire_alone("b", OTHER, phase="queued").answer, Held)
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("a", b"the message")

    @pytest.mark.proves("unique, recovery")
    def test_the_end_of_a_unique_body_frees_its_key_and_recovers_nothing(self) -> None:
        key = self.key()
        self.begin_unique(key)
        assert found(key.release("a", ending="if_no_copy"))
        assert not key.inspect().is_busy
        assert isinstance(key.acquire_alone("b", OTHER, phase="queued").answer, Granted)
        assert not key.reap().wake

    @pytest.mark.proves("unique, recovery")
    def test_a_unique_run_that_is_redelivered_between_its_body_and_its_end_runs_again(self) -> None:
        key = self.key()
        self.begin_unique(key)
        assert found(key.release("a", ending="if_no_copy"))
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Granted)

    @pytest.mark.proves("unique, recovery")
    def test_a_retry_inherits_a_unique_lease_without_the_message_of_its_run(self) -> None:
        key = self.key()
        fence = self.begin_unique(key)
        retry = key.acquire_alone("a2", OTHER, ttl=SHORT, inherits=("a", TOKEN), phase="again")
        assert retry.answer == Granted(fence)
        assert not woken(retry)
        key.wait_until_expired()
        key.hold("b", OTHER)
        assert not woken(key.release("b", OTHER))

    def begin_unique(self, key: Key, *, ttl: float = LONG) -> int:
        """Let "a" begin, which was published with its key; return its fence."""
        key.needs_line()
        fence = fence_of(key.acquire_alone("a", OTHER, phase="queued"))
        begun = key.acquire("a", ttl=ttl, message=b"the message", at_once=True, recovers=True)
        assert begun.answer == Granted(fence)
        return fence

    def test_a_sweep_says_what_time_it_is(self) -> None:
        store = self.client()
        first = store.reap().time
        assert 0 < first <= store.reap().time

    def dead_run(self) -> Key:
        """Return a key whose only holder has not renewed its lease."""
        key = self.key()
        key.run("a", ttl=SHORT, message=b"the message")
        key.wait_until_expired()
        return key
