"""Amounts: a store keeps the longest times and the highest counts that options and settings accept."""

from __future__ import annotations

import pytest

from celery_exclusive.core.key_state import LONGEST_OFFER
from celery_exclusive.core.records import SECOND
from celery_exclusive.options.amounts import LONGEST, MOST
from tests.kit.subject import LONG, OTHER, Key, Subject, fence_of, found


class AmountPromises(Subject):
    @pytest.mark.proves("bounds of times and counts")
    def test_the_longest_lease_is_kept_and_renewed(self) -> None:
        key = self.key()
        first = key.hold("a", ttl=LONGEST)
        assert _lasts(key)
        assert key.renew("a", ttl=LONGEST)
        assert _lasts(key)
        assert key.is_held_against("b")
        assert found(key.release("a"))
        assert fence_of(key.acquire_alone("c", ttl=LONGEST, phase="period")) > first
        assert _lasts(key)

    @pytest.mark.proves("bounds of times and counts")
    def test_the_highest_limit_grants_every_claim(self) -> None:
        key = self.key()
        for id in "abc":
            key.hold(id, limit=MOST)
        assert key.holders() == ["a", "b", "c"]
        assert key.is_held_against("d", limit=1)

    @pytest.mark.proves("bounds of times and counts")
    def test_the_longest_line_offer_and_tombstone_are_kept(self) -> None:
        key = self.key(offer=LONGEST // LONGEST_OFFER, tombstone_ttl=LONGEST)
        key.needs_line()
        key.hold("a", limit=1)
        key.acquire("b", message=b"b", max_waiting=MOST)
        (wake,) = key.release("a").wake
        assert key.is_held_against("c")
        fence_of(key.acquire("b", promoted=wake.epoch, message=b"b", limit=MOST))
        assert found(key.release("b"))
        assert key.is_stale("b", OTHER, redelivered=True)


def _lasts(key: Key) -> bool:
    (owner,) = key.inspect().holders
    return LONGEST - LONG < owner.remaining / SECOND <= LONGEST
