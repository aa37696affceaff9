"""The store under test, and short methods for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Ending,
    ForceRelease,
    GiveUp,
    Granted,
    Held,
    Order,
    Parked,
    Release,
    Remove,
    RemoveEnding,
    Renew,
    Requeue,
    Restore,
    Stale,
)
from celery_exclusive.core.records import NEVER, Phase
from celery_exclusive.stores.base import Reply, Snapshot, Store, Wake

LONG = 600.0
"""Seconds: longer than any test, however slow the machine."""
SHORT = 0.03
SWIFT = 0.001
"""Seconds: with it, all offers take a quarter of a second."""
DEADLINE = 60.0
TOKEN = "0123456789abcdef"
OTHER = "fedcba9876543210"


class Subject:
    """Opens clients of the store under test, in a namespace of its own for each test."""

    is_shared_by_processes: bool = True
    """False for a store in the memory of one process: skips the tests that fork."""
    dying_leases: int = 6
    """How many leases of each client expire in a test. Fewer suffice if each takes seconds to do so."""

    def make_store(self, *, prefix: str, offer: float, tombstone_ttl: float) -> Store:
        """Open a new client of the same store.

        Parameters:
            prefix: the namespace.
            offer: seconds of the first offer of a free slot to the head of the line.
            tombstone_ttl: seconds for which a finished task that had waited is remembered.
        """
        raise NotImplementedError("a conformance test class needs make_store()")

    def lose_data(self) -> None:
        """Make the store lose all its data. Without it these tests are skipped."""
        pytest.skip("no lose_data() to make the store forget")

    def unreachable_store(self) -> Store:
        """Open a client of a store that does not exist. Without it these tests are skipped."""
        pytest.skip("no unreachable_store() to fail")

    def kept_for_ever(self, prefix: str) -> Sequence[str]:
        """Return the names in the namespace that would never expire, besides one fence and the epoch.

        It is called when everything has finished; by default it returns none.
        """
        return ()

    @pytest.fixture(autouse=True)
    def _clients(self) -> Iterator[None]:
        self.prefix = f"kit{token_hex(4)}"
        self._opened: list[Store] = []
        yield
        for store in self._opened:
            store.close()

    def client(self, *, offer: float = LONG, tombstone_ttl: float = LONG, prefix: str = "") -> Store:
        """Open a new client, by default in the namespace that all clients of this test share."""
        store = self.make_store(prefix=prefix or self.prefix, offer=offer, tombstone_ttl=tombstone_ttl)
        self._opened.append(store)
        return store

    def key(
        self, name: str = "key", *, offer: float = LONG, tombstone_ttl: float = LONG, prefix: str = ""
    ) -> Key:
        """Return a key, with a new client for it."""
        return Key(self.client(offer=offer, tombstone_ttl=tombstone_ttl, prefix=prefix), name)

    def lists(self, store: Store, *names: str, prefix: str = "") -> bool:
        """Whether the store lists these keys alone; a store that cannot list is not asked."""
        return not store.capabilities.listing or sorted(store.scan(prefix)) == sorted(names)

    def key_of_dying_holder(self, *ids: str, holder: str = "dying", offer: float = LONG) -> Key:
        """Return a key where these ids wait for a holder, with token OTHER, whose lease expires soon."""
        ttl = SHORT
        while True:
            key = self.key(f"key {token_hex(4)}", offer=offer)
            key.needs_line()
            key.hold(holder, OTHER, ttl=ttl)
            replies = [key.acquire(id, message=b"message") for id in ids]
            if all(isinstance(reply.answer, Parked) and not reply.wake for reply in replies):
                return key
            ttl *= 2  # it expired before the ids were parked

    def with_aside(self, *ids: str) -> Key:
        """Return a free key whose line is "last", with these ids aside."""
        key = self.key(offer=SWIFT)
        key.hold("a")
        for id in ids:
            key.park(id)
        key.park("last")
        aside: list[tuple[str, str]] = []

        def reap() -> Reply:
            reply = key.reap()
            aside.extend(reply.aside)
            return reply

        aside.extend(key.release("a").aside)
        until(lambda: bool(reap()) and len(aside) == len(ids), "they have stepped aside")
        assert aside == [(key.name, id) for id in ids]
        return key


@dataclass(frozen=True)
class Key:
    """One key of a store; all times in seconds."""

    store: Store
    name: str

    def acquire(
        self,
        id: str,
        token: str = TOKEN,
        *,
        ttl: float = LONG,
        limit: int = 1,
        redelivered: bool = False,
        promoted: str | None = None,
        late: bool = True,
        message: bytes | None = None,
        max_waiting: int | None = None,
        takes_over: tuple[str, Phase] | None = None,
        at_once: bool = False,
        recovers: bool = False,
        order: Order | None = None,
        expires_in: float | None = None,
        gives_up_in: float | None = None,
        replaces: bool = False,
    ) -> Reply:
        return self.store.apply(
            self.name,
            Acquire(
                id,
                token,
                int(ttl * 1e6),
                limit,
                redelivered,
                promoted,
                late,
                message,
                max_waiting,
                takes_over,
                at_once,
                recovers,
                order,
                None if expires_in is None else int(expires_in * 1e6),
                None if gives_up_in is None else int(gives_up_in * 1e6),
                replaces,
            ),
        )

    def hold(self, id: str, token: str = TOKEN, *, ttl: float = LONG, limit: int = 1) -> int:
        """Let this id acquire the key, which must be free; return the fence."""
        return fence_of(self.acquire(id, token, ttl=ttl, limit=limit))

    def park(
        self,
        id: str,
        token: str = TOKEN,
        *,
        message: bytes = b"message",
        redelivered: bool = False,
        expires_in: float | None = None,
        gives_up_in: float | None = None,
        replaces: bool = False,
    ) -> Reply:
        """Wait in line for the key, which must be held."""
        self.needs_line()
        reply = self.acquire(
            id,
            token,
            redelivered=redelivered,
            message=message,
            expires_in=expires_in,
            gives_up_in=gives_up_in,
            replaces=replaces,
        )
        assert isinstance(reply.answer, Parked)
        return reply

    def follow(self, wake: Wake, token: str = TOKEN, *, ttl: float = LONG, late: bool = True) -> Reply:
        """Deliver the copy that was republished for an offer."""
        return self.acquire(wake.id, token, ttl=ttl, promoted=wake.epoch, late=late, message=wake.message)

    def is_held_against(self, id: str, *, limit: int = 1) -> bool:
        """Whether a new delivery that does not wait is refused."""
        return isinstance(self.acquire(id, OTHER, limit=limit).answer, Held)

    def is_stale(
        self,
        id: str,
        token: str = TOKEN,
        *,
        redelivered: bool = False,
        promoted: str | None = None,
        message: bytes | None = None,
    ) -> bool:
        reply = self.acquire(id, token, redelivered=redelivered, promoted=promoted, message=message)
        return reply.answer == Stale()

    def renew(self, id: str, token: str = TOKEN, *, ttl: float = LONG) -> bool:
        return self.store.renew([(self.name, Renew(id, token, int(ttl * 1e6)))]) == [True]

    def release(self, id: str, token: str = TOKEN, *, ending: Ending = "done") -> Reply:
        return self.store.apply(self.name, Release(id, token, ending))

    def requeue(self, id: str, token: str = TOKEN) -> Reply:
        return self.store.apply(self.name, Requeue(id, token, int(LONG * 1e6)))

    def give_up(self, id: str, *, releases: bool = False) -> Reply:
        return self.store.apply(self.name, GiveUp(id, releases))

    def remove(self, id: str, *, ending: RemoveEnding = "done") -> Reply:
        return self.store.apply(self.name, Remove(id, ending))

    def force_release(self, id: str) -> Reply:
        return self.store.apply(self.name, ForceRelease(id))

    def restore(self, id: str, token: str = TOKEN, *, limit: int = 1) -> Reply:
        return self.store.apply(self.name, Restore(id, token, int(LONG * 1e6), limit))

    def acquire_alone(
        self,
        id: str,
        token: str = TOKEN,
        *,
        ttl: float = LONG,
        inherits: tuple[str, str] | None = None,
        phase: Phase = "running",
    ) -> Reply:
        return self.store.apply(self.name, AcquireAlone(id, token, int(ttl * 1e6), inherits, phase))

    def run(self, id: str, *, ttl: float = LONG, message: bytes = b"message") -> int:
        """Let this id acquire the key, which must be free, with its message kept behind its run."""
        self.needs_line()
        return fence_of(self.acquire(id, ttl=ttl, message=message, at_once=True, recovers=True))

    def reap(self, *, recovers_until: int = NEVER) -> Reply:
        return self.store.reap(recovers_until=recovers_until)

    def reap_until_woken(self) -> Wake:
        """Reap until there is an offer; return the only offer."""
        woken: list[Wake] = []

        def reap() -> bool:
            woken.extend(self.reap().wake)
            return bool(woken)

        until(reap, "the reaper makes an offer")
        (wake,) = woken
        return wake

    def inspect(self) -> Snapshot:
        return self.store.inspect(self.name)

    def holders(self) -> list[str]:
        return [owner.id for owner in self.inspect().holders]

    def needs_line(self) -> None:
        if not self.store.capabilities.line:
            pytest.skip("this store keeps no line")

    def wait_until_expired(self) -> None:
        """Wait until the leases of the key have expired."""
        until(lambda: not any(it.remaining for it in self.inspect().holders), "the lease has expired")


def fence_of(reply: Reply) -> int:
    assert isinstance(reply.answer, Granted)
    return reply.answer.fence


def found(reply: Reply) -> bool:
    assert isinstance(reply.answer, Applied)
    return reply.answer.is_applied


def woken(reply: Reply) -> list[str]:
    return [wake.id for wake in reply.wake]


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition, and fail only long after it must be true."""
    deadline = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < deadline, f"waited {DEADLINE:.0f} s until {what}"
        time.sleep(0.005)
