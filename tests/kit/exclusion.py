"""Exclusion: at every instant of the store's clock, at most `limit` unexpired holders per key."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from celery_exclusive.core.operations import Granted, Held
from tests.kit.subject import LONG, OTHER, SHORT, Key, Subject, found, until, woken


@dataclass(frozen=True)
class _Lease:
    """A lease as its holder knows it: held from the reply until `ttl` after the request."""

    fence: int
    since: float
    until: float


class ExclusionPromises(Subject):
    def test_a_free_key_is_granted(self) -> None:
        assert isinstance(self.key().acquire("a").answer, Granted)

    def test_a_held_key_is_not_granted_again(self) -> None:
        self.key().hold("a")
        assert isinstance(self.key().acquire("b", OTHER).answer, Held)

    def test_another_delivery_of_the_same_id_does_not_share_its_lease(self) -> None:
        key = self.key()
        key.hold("a")
        assert isinstance(key.acquire("a", OTHER, redelivered=True).answer, Held)

    @pytest.mark.parametrize("limit", [2, 4, 20])
    def test_a_key_has_as_many_holders_as_its_limit_and_no_more(self, limit: int) -> None:
        key = self.key()
        for number in range(limit):
            key.hold(f"holder {number}", limit=limit)
        assert key.is_held_against("one more", limit=limit)
        assert found(key.release("holder 0"))
        key.hold("another", limit=limit)
        assert key.is_held_against("one more", limit=limit)

    def test_keys_do_not_disturb_each_other(self) -> None:
        for name in ("key", "key2", "ke", "KEY", "key "):
            self.key(name).hold("a")

    @pytest.mark.promise("A lowered limit evicts no holder", broke="a lowered limit that evicts")
    def test_a_lowered_limit_evicts_no_holder_and_grants_nothing_new(self) -> None:
        key = self.key()
        for id in "abc":
            key.hold(id, limit=3)
        assert key.is_held_against("d", limit=1)
        assert key.holders() == ["a", "b", "c"]
        assert found(key.release("a"))
        assert found(key.release("b"))
        assert key.is_held_against("d", limit=1)
        assert found(key.release("c"))
        key.hold("d", limit=1)

    @pytest.mark.promise(
        "A refused request does not change the limit of the others",
        broke="limit taken over, in Python and in Lua",
    )
    def test_a_refused_request_leaves_the_limit_of_the_others_as_it_was(self) -> None:
        key = self.key()
        for id in "ab":
            key.hold(id, limit=2)
        key.needs_line()
        key.acquire("c", limit=2, message=b"message")
        assert key.is_held_against("d", limit=1)
        assert woken(key.release("a")) == ["c"]

    def test_a_raised_limit_grants_at_once(self) -> None:
        key = self.key()
        key.hold("a", limit=1)
        assert key.is_held_against("b", limit=1)
        key.hold("b", limit=2)

    def test_a_lease_that_is_not_renewed_expires(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        until(
            lambda: isinstance(key.acquire("b", OTHER).answer, Granted),
            "the lease expires and the key is granted",
        )
        assert key.holders() == ["b"]

    def test_a_renewed_lease_outlives_its_first_ttl(self) -> None:
        ttl = SHORT
        while True:
            key, clock = self.key(f"{ttl}"), self.key(f"{ttl} clock")
            key.hold("a", ttl=ttl)
            clock.hold("as long as that", ttl=ttl)
            if key.renew("a", ttl=LONG):
                break
            ttl *= 2  # it expired before the renewal
        clock.wait_until_expired()
        assert key.holders() == ["a"]

    @pytest.mark.proves("exclusion")
    @pytest.mark.parametrize("limit", [1, 3])
    def test_expired_leases_never_overlap(self, limit: int) -> None:
        """Threads acquire leases and let them expire; never do more than `limit` of them count on one."""
        with ThreadPoolExecutor(4) as pool:
            clients = [self.key() for _ in range(4)]
            each = pool.map(_dying_leases, clients, [limit] * 4, [self.dying_leases] * 4)
            leases = [lease for some in each for lease in some]
        assert len(leases) == 4 * self.dying_leases
        assert len({lease.fence for lease in leases}) == len(leases)
        for lease in leases:
            others = [other for other in leases if other.since <= lease.since < other.until]
            assert len(others) <= limit


def _dying_leases(key: Key, limit: int, count: int) -> list[_Lease]:
    leases: list[_Lease] = []
    number = 0
    while len(leases) < count:
        number += 1
        ttl = random.uniform(0.002, 0.015)
        sent = time.monotonic()
        answer = key.acquire(f"{id(key)} {number}", ttl=ttl, limit=limit).answer
        if isinstance(answer, Granted):
            leases.append(_Lease(answer.fence, time.monotonic(), sent + ttl))
    return leases
