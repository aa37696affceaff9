"""The lease: one holder's right to a key, as the holder sees it, and what keeps it where no worker does."""

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
    """The epoch of a store as a heartbeat saw it, and when. All leases of that heartbeat stood then."""

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
        key: what is locked.
        fence: a number that only grows from one lease of a key to the next. A resource that remembers the
            highest it has seen, and refuses writes with a lower one, cannot be harmed by a paused holder.
        ttl: seconds without heartbeat after which the lease is dead.
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
        """Renew the lease and make sure that it still stands; cheap enough to call between pieces of work.

        If the store has lost its data, the lease is put back.

        Raises:
            LeaseLost: it ran out, as when this process was paused for longer than `ttl`, and the key may have
                gone to somebody else; or it was lost with the store's data, and somebody else has the key; or
                the store cannot be asked and `ttl` has passed since it last could.
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
        """Whether it was granted to the claim of this id."""
        return self._id == id

    def end(self) -> None:
        """It is about to be released, or lost: nobody must put it back from now on."""
        self._is_over = True

    def put_back(self) -> bool:
        """Put it back into a store that has lost its data, unless somebody else has the key; tell whether."""
        if self._is_over:
            return False
        asked = time.monotonic()
        restore = Restore(self._id, self._token, round(self.ttl * SECOND), self._limit)
        lives = self._store.apply(self.key, restore).answer == Done(True)
        if lives:
            self._certain_until, self._since = asked + self.ttl, time.monotonic()
        if self._is_over:  # it was released meanwhile, maybe before
            self._store.apply(self.key, Release(self._id, self._token, done=False))
        return lives

    def _is_forgotten(self, now: float) -> bool:
        """Whether the store has lost this lease with its data, as its heartbeat is yet to notice."""
        known = self._known()
        if known is None:
            return False
        if known.at <= self._since and now >= self._certain_until:
            return False  # the data may have been lost before the grant: then the lease has merely run out
        return self._store.epoch() != known.epoch


def renew(leases: list[Lease]) -> list[bool]:
    """Renew leases of one store in one call; tell for each whether it stands."""
    asked = time.monotonic()
    renewals = [(lease.key, Renew(lease._id, lease._token, round(lease.ttl * SECOND))) for lease in leases]
    answers = leases[0]._store.renew(renewals)
    for lease, lives in zip(leases, answers, strict=True):
        if lives:
            lease._certain_until = asked + lease.ttl
    return answers


class Heartbeat:
    """Renews, three times per ttl, the leases that this process took by itself, without a worker.

    When a store has lost its data, it puts them back. One thread, from the first lease until a beat after the
    last. It does not keep their owners alive: a lease that nobody can give back any more ends by its ttl.
    """

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything: in a forked child the leases are its parent's, and the thread is not there."""
        self._pid = os.getpid()
        self._kept: dict[Lease, weakref.ref[object]] = {}
        self._guard = original("_thread", "RLock")()  # a signal handler may take a lock while it is held
        self._sooner: queue.SimpleQueue[None] = original("queue", "SimpleQueue")()
        self._period: float | None = None
        self._known: dict[Store, Known] = {}

    @property
    def is_beating(self) -> bool:
        """Whether it has a thread."""
        return self._period is not None

    def learn(self, store: Store) -> None:
        """Learn the epoch of a store, before it grants the first lease in a while."""
        if self._pid != os.getpid():
            self.start_anew()
        if not self.is_beating or store not in self._known:
            now = time.monotonic()
            self._known[store] = Known(store.epoch(), now)

    def known(self, store: Store) -> Known | None:
        """The epoch of a store, as it was last seen."""
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
        """Wait until a beat is due; False, and the thread has to end, if there is nothing to keep."""
        with self._guard:
            period = self._period
        with suppress(queue.Empty):
            self._sooner.get(timeout=period or 0)
        with self._guard:
            forgotten = [lease for lease, owner in self._kept.items() if owner() is None]
            for lease in forgotten:
                del self._kept[lease]
            self._period = min((lease.ttl / 3 for lease in self._kept), default=None)
            goes_on = self.is_beating
        for lease in forgotten:
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
"""That of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heartbeat.start_anew)


def insist(call: Callable[[], T]) -> tuple[T, BaseException | None, bool]:
    """Do a store call that ends something like `finish`, a second time if it fails; tell also whether."""
    try:
        return *finish(call), False
    except Exception:  # noqa: BLE001 - that of the second time is raised
        return *finish(call), True


def finish(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Do a store call to its end, whatever a signal handler raises into it meanwhile.

    A soft time limit, or a termination, may land anywhere in it. Every verb can be repeated, so it is, and
    the interruption is told afterwards.
    """
    interruption: BaseException | None = None
    for _ in range(3):
        try:
            return call(), interruption
        except ExclusiveError:
            if interruption and not isinstance(interruption, Exception):
                raise interruption from None
            raise
        except BaseException as error:  # noqa: BLE001 - told, not swallowed
            interruption = error
    raise interruption or AssertionError
