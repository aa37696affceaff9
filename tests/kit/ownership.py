"""Ownership, fences, and operations that can be repeated after a lost reply."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Granted, Parked, Renew
from tests.kit.subject import (
    LONG,
    OTHER,
    SHORT,
    TOKEN,
    Subject,
    fence_of,
    found,
    woken,
)


class OwnershipPromises(Subject):
    @pytest.mark.promise(
        "Only the holder's token changes a lease",
        name="ownership",
        broke="explorer: any token will do; one token for all deliveries",
    )
    def test_a_stranger_can_neither_release_nor_renew(self) -> None:
        key = self.key()
        key.hold("a")
        assert not found(key.release("b"))
        assert not key.renew("b")
        assert key.holders() == ["a"]

    @pytest.mark.proves("ownership")
    def test_another_delivery_of_the_same_id_can_neither_release_nor_renew(self) -> None:
        key = self.key()
        key.hold("a", TOKEN)
        assert not found(key.release("a", OTHER))
        assert not key.renew("a", OTHER)
        assert key.holders() == ["a"]

    def test_a_late_finisher_can_neither_release_nor_renew(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        key.hold("b", OTHER)
        assert found(key.release("b", OTHER))
        assert not key.renew("a")
        assert not found(key.release("a"))

    @pytest.mark.promise(
        "A holder that was paused past its lease learns of it, and its fence is stale",
        name="paused holder",
        broke="a `check()` that never raises",
        figure="282 of 282 stale writes refused",
    )
    def test_a_late_finisher_of_a_key_without_another_owner_learns_that_its_lease_has_expired(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        assert not found(key.release("a"))

    @pytest.mark.proves("ownership")
    def test_a_late_finisher_leaves_the_next_holder_alone(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        key.hold("b", OTHER)
        assert not key.renew("a")
        assert not found(key.release("a"))
        assert key.holders() == ["b"]

    def test_a_late_first_delivery_leaves_its_own_redelivery_alone(self) -> None:
        key = self.key()
        key.hold("a", TOKEN, ttl=SHORT)
        key.wait_until_expired()
        fence_of(key.acquire("a", OTHER, redelivered=True))
        assert not key.renew("a", TOKEN)
        assert not found(key.release("a", TOKEN))
        assert key.holders() == ["a"]

    def test_an_operator_can_release_a_lease_and_its_holder_notices(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        reply = key.force_release("a")
        assert found(reply)
        assert woken(reply) == ["b"]
        assert not key.renew("a")
        assert not found(key.release("a"))

    @pytest.mark.proves("forced release")
    def test_a_force_released_lease_is_not_offered_to_its_own_copy_if_the_broker_has_that_too(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert isinstance(key.follow(wake, OTHER).answer, Granted)
        assert woken(key.force_release("b")) == []
        assert key.inspect().waiting == 0
        assert isinstance(key.acquire("b", redelivered=True).answer, Granted)  # what the broker has

    @pytest.mark.proves("forced release")
    def test_a_force_released_lease_is_offered_to_its_own_copy_that_only_the_store_has(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("a", OTHER, redelivered=True)
        assert woken(key.force_release("a")) == ["a"]

    @pytest.mark.proves("loss of data")
    def test_a_lease_that_the_store_has_forgotten_is_restored_for_its_holder_alone(self) -> None:
        key = self.key()
        assert found(key.restore("a", TOKEN))
        assert key.renew("a", TOKEN)
        assert not found(key.restore("b"))
        assert not found(key.restore("a", OTHER))
        assert key.holders() == ["a"]
        assert found(key.release("a", TOKEN))

    def test_a_waiting_task_restores_no_forgotten_lease(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert not found(key.restore("b"))
        fence_of(key.follow(wake))

    @pytest.mark.proves("ownership")
    def test_renewing_never_shortens(self) -> None:
        key = self.key()
        key.hold("a", ttl=LONG)
        assert key.renew("a", ttl=SHORT)
        assert key.inspect().holders[0].remaining > LONG / 2 * 1e6

    def test_acquiring_again_never_shortens(self) -> None:
        key = self.key()
        key.hold("a", ttl=LONG)
        key.hold("a", ttl=SHORT)
        assert key.inspect().holders[0].remaining > LONG / 2 * 1e6

    @pytest.mark.proves("ownership")
    def test_renewing_never_revives_a_lease_whose_key_another_has_acquired(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        key.hold("b", OTHER)
        assert not key.renew("a")
        assert found(key.release("b", OTHER))
        assert not key.renew("a")
        assert key.holders() == []

    def test_many_leases_are_renewed_at_once_and_answered_one_by_one(self) -> None:
        store = self.client()
        keys = [self.key(f"key {number}") for number in range(3)]
        leases = []
        for number in range(60):
            key = keys[number % 3]
            key.hold(f"{number}", ttl=LONG, limit=20)
            token = OTHER if number % 7 == 0 else TOKEN
            leases.append((key.name, Renew(f"{number}", token, 10**6)))
        leases.append(("a key without holder", Renew("a", TOKEN, 10**6)))
        assert store.renew(leases) == [number % 7 != 0 for number in range(60)] + [False]
        assert store.renew([]) == []


class FencePromises(Subject):
    def test_fences_are_positive(self) -> None:
        assert self.key().hold("a") > 0

    @pytest.mark.promise(
        "The fence of a key only grows, also over a store that lost its data",
        name="fence grows",
        broke=(
            "a fence that stands still; without the clock; by the clock alone; not kept when its key is "
            "cleared away"
        ),
    )
    def test_the_fence_grows_over_releases_on_every_key(self) -> None:
        keys = [self.key(f"key {number}") for number in range(10)]
        last = dict.fromkeys(keys, 0)
        for turn in range(5):
            for key in keys:
                fence = key.hold(f"{turn}")
                assert fence > last[key]
                last[key] = fence
                assert found(key.release(f"{turn}"))

    def test_the_fence_grows_over_expired_leases(self) -> None:
        key = self.key()
        first = key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        assert key.hold("b") > first

    @pytest.mark.proves("fence grows")
    def test_the_fence_grows_after_the_key_was_cleared(self) -> None:
        key = self.key()
        first = key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        key.reap()
        second = key.hold("b", ttl=LONG)
        assert second > first
        key.release("b")
        key.reap()
        assert key.hold("a") > second

    def test_holders_of_one_key_have_different_fences(self) -> None:
        key = self.key()
        fences = [key.hold(f"{number}", limit=10) for number in range(10)]
        assert fences == sorted(set(fences))

    def test_the_fence_of_a_waiting_task_is_above_the_fence_of_the_holder_before_it(self) -> None:
        key = self.key()
        first = key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert fence_of(key.follow(wake)) > first


class RepeatPromises(Subject):
    @pytest.mark.promise(
        "Each operation of a store can be repeated after a lost reply, also where the server that it meets "
        "the second time does not know the script",
        name="repeated operations",
        broke=(
            "explorer: a repeated request sent as the first; red before: nine verbs, sent by the text of "
            "their script as if for the first time"
        ),
    )
    def test_acquiring_again_is_the_same_grant(self) -> None:
        key = self.key()
        assert key.hold("a") == key.hold("a")
        assert key.holders() == ["a"]

    def test_a_repeated_grant_of_a_promoted_copy_is_the_same_grant(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert fence_of(key.follow(wake)) == fence_of(key.follow(wake))

    @pytest.mark.proves("repeated operations")
    def test_parking_again_keeps_the_position(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        again = key.park("b").answer
        assert isinstance(again, Parked)
        assert again.position == 1
        assert key.inspect().waiting == 2
        assert woken(key.release("a")) == ["b"]

    @pytest.mark.proves("repeated operations")
    def test_releasing_again_finds_nothing_and_changes_nothing(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        key.park("c")
        assert found(key.release("a"))
        again = key.release("a")
        assert not found(again)
        assert not again.wake
        assert key.inspect().waiting == 2

    def test_renewing_again_is_renewing(self) -> None:
        key = self.key()
        key.hold("a")
        assert key.renew("a")
        assert key.renew("a")

    def test_removing_again_finds_nothing(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        assert found(key.remove("b"))
        assert not found(key.remove("b"))

    def test_reaping_again_offers_nothing_twice(self) -> None:
        key = self.key_of_dying_holder("a")
        key.reap_until_woken()
        assert not key.reap().wake
