"""The lease of a holder, and the heartbeat that renews the leases of a process without a worker."""

from __future__ import annotations

import os
import queue
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Done, Release, Renew, Restore
from celery_exclusive.errors import ExclusiveError, LeaseLost, StoreUnavailable
from celery_exclusive.system.threads import NativeThread, original

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """The epoch of a store, and when the heartbeat read it. All its leases were valid then."""

    epoch: str
    at: float


@dataclass(slots=True, eq=False)
class Lease:
    """The right to a key, for as long as the heartbeat renews it.

    Example:
        @app.task(bind=True, exclusive=Exclusive(key="repo:{project_id}"))
        def sync(self, project_id):
            for page in pages(project_id):
                self.lease.check()
                save(page, fence=self.lease.fence)

    Attributes:
        key: the key.
        fence: a number that only grows from one lease of a key to the next. A resource that remembers the
            highest fence and refuses writes with a lower one is safe from a paused holder.
        ttl: seconds without heartbeat after which the lease expires.
    """

    key: str
    fence: int
    ttl: float
    _store: Store = field(repr=False)
    _id: str = field(repr=False)
    _token: str = field(repr=False)
    _limit: int = field(repr=False)
    _certain_until: float = field(repr=False)
    _known: Callable[[], Known | None] = field(repr=False)
    _since: float = field(init=False, repr=False, default_factory=time.monotonic)
    _is_over: bool = field(init=False, repr=False, default=False)

    def check(self) -> None:
        """Renew the lease, and raise if it is lost; cheap enough to call between pieces of work.

        If the store has lost its data, the lease is restored.

        Raises:
            LeaseLost: it has expired, as when this process was paused for longer than `ttl`, and the key may
                have another owner; or it was lost with the store's data, and the key has another owner; or
                the store does not answer, and has not for `ttl`.
        """
        asked = time.monotonic()
        try:
            (lives,) = renew([self])
            lives = lives or (self._is_forgotten(asked) and self.put_back())
        except StoreUnavailable as error:
            if asked < self._certain_until:
                return
            raise LeaseLost(
                f"the lease on {self.key} cannot be confirmed: {error}. Stop this work"
            ) from error
        if not lives:
            self.end()
            raise LeaseLost(
                f"the lease on {self.key} (fence {self.fence}) is lost: not renewed for {self.ttl:g} s, "
                "released by force, or lost with the data of its store. Another owner may hold the key: stop "
                "this work"
            )

    def is_of(self, id: str) -> bool:
        """Whether it belongs to the claim with this id."""
        return self._id == id

    def end(self) -> None:
        """Mark it as released or lost: it must not be restored from now on."""
        self._is_over = True

    def put_back(self) -> bool:
        """Restore it in a store that has lost its data, unless the key has another owner; return whether."""
        if self._is_over:
            return False
        asked = time.monotonic()
        restore = Restore(self._id, self._token, round(self.ttl * SECOND), self._limit)
        lives = self._store.apply(self.key, restore).answer == Done(True)
        if lives:
            self._certain_until, self._since = asked + self.ttl, time.monotonic()
        if self._is_over:  # it was released meanwhile, maybe before it was restored
            self._store.apply(self.key, Release(self._id, self._token, done=False))
        return lives

    def _is_forgotten(self, now: float) -> bool:
        """Whether the store has lost this lease with its data, and the heartbeat has not noticed yet."""
        known = self._known()
        if known is None:
            return False
        if known.at <= self._since and now >= self._certain_until:
            return False  # the data may have been lost before the grant: then the lease has merely expired
        return self._store.epoch() != known.epoch


def renew(leases: list[Lease]) -> list[bool]:
    """Renew leases of one store in one call; return for each whether it is still held."""
    asked = time.monotonic()
    renewals = [(lease.key, Renew(lease._id, lease._token, round(lease.ttl * SECOND))) for lease in leases]
    answers = leases[0]._store.renew(renewals)
    for lease, lives in zip(leases, answers, strict=True):
        if lives:
            lease._certain_until = asked + lease.ttl
    return answers


class Heartbeat:
    """Renews, three times per ttl, the leases that this process acquired without a worker.

    It restores them when a store has lost its data. Its thread runs from the first lease until a beat after
    the last. It does not keep their owners alive: a lease whose owner was deleted expires.
    """

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything: a forked child has neither the leases nor the thread of its parent."""
        self._pid = os.getpid()
        self._kept: dict[Lease, weakref.ref[object]] = {}
        self._guard = original("_thread", "RLock")()  # a signal handler may acquire a lock while it is held
        self._sooner: queue.SimpleQueue[None] = original("queue", "SimpleQueue")()
        self._period: float | None = None
        self._known: dict[Store, Known] = {}

    @property
    def is_beating(self) -> bool:
        """Whether its thread runs."""
        return self._period is not None

    def learn(self, store: Store) -> None:
        """Read the epoch of a store before it grants the first lease, or the first after a pause."""
        if self._pid != os.getpid():
            self.start_anew()
        if not self.is_beating or store not in self._known:
            now = time.monotonic()
            self._known[store] = Known(store.epoch(), now)

    def known(self, store: Store) -> Known | None:
        """Return the epoch of a store, as it was last read."""
        return self._known.get(store)

    def keep(self, lease: Lease, owner: object) -> None:
        """Renew this lease from now on, as long as its owner exists."""
        if self._pid != os.getpid():  # forked behind Python's back, as uWSGI does
            self.start_anew()
        with self._guard:
            self._kept[lease] = weakref.ref(owner)
            if self._period is None:
                try:
                    NativeThread(self._run).start()
                except RuntimeError as error:  # the process is about to end, or may have no more threads
                    notices.trouble(
                        f"the lease on lock {lease.key} is not renewed and expires after its ttl", error
                    )
                    return
                self._period = lease.ttl / 3
            elif lease.ttl / 3 < self._period:
                self._period = lease.ttl / 3
                self._sooner.put(None)

    def drop(self, lease: Lease) -> None:
        lease.end()
        with self._guard:
            self._kept.pop(lease, None)

    def _run(self) -> None:
        trouble = notices.Trouble("the renewal of the leases of lock()")
        while self._rest():
            with trouble:
                self._beat()

    def _rest(self) -> bool:
        """Wait until a beat is due; return False, to end the thread, if there are no leases left."""
        with self._guard:
            period = self._period
        with suppress(queue.Empty):
            self._sooner.get(timeout=period or 0)
        with self._guard:
            ownerless = [lease for lease, owner in self._kept.items() if owner() is None]
            for lease in ownerless:
                del self._kept[lease]
            self._period = min((lease.ttl / 3 for lease in self._kept), default=None)
            goes_on = self.is_beating
        for lease in ownerless:
            notices.forgotten(lease.key, lease.ttl)
        return goes_on

    def _beat(self) -> None:
        by_store: defaultdict[Store, list[Lease]] = defaultdict(list)
        with self._guard:
            for lease in self._kept:
                by_store[lease._store].append(lease)
        errors: list[Exception] = []
        for store, leases in by_store.items():
            try:
                self._keep_all(store, leases)
            except Exception as error:  # noqa: BLE001 - raised when the other stores have had their turn
                errors.append(error)
        if errors:
            raise errors[0]

    def _keep_all(self, store: Store, leases: list[Lease]) -> None:
        now = time.monotonic()
        gone = [lease for lease, lives in zip(leases, renew(leases), strict=True) if not lives]
        epoch, known = store.epoch(), self._known.get(store)
        if known and known.epoch != epoch:
            for lease in gone:
                lease.put_back()
            notices.restored(store.url, [lease.key for lease in leases])
        else:
            for lease in gone:
                lease.end()
        self._known[store] = Known(epoch, now)


heartbeat: Final = Heartbeat()
"""The heartbeat of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heartbeat.start_anew)


def insist(call: Callable[[], T]) -> tuple[T, BaseException | None, bool]:
    """Do a store call like `finish`, a second time if it fails; return also whether it was repeated."""
    try:
        return *finish(call), False
    except Exception:  # noqa: BLE001 - the second error is raised
        return *finish(call), True


def finish(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Complete a store call, even if a signal handler raises into it; return what it raised.

    A soft time limit, or a termination, may interrupt it anywhere. Every store operation can be repeated, so
    it is.
    """
    interruption: BaseException | None = None
    for _ in range(3):
        try:
            return call(), interruption
        except ExclusiveError:
            if interruption and not isinstance(interruption, Exception):
                raise interruption from None
            raise
        except BaseException as error:  # noqa: BLE001 - returned, not swallowed
            interruption = error
    raise interruption or AssertionError
