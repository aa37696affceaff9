"""The heartbeat of a process without a worker, which renews the leases of `lock()` and `apply()`."""

from __future__ import annotations

import os
import queue
import weakref
from contextlib import suppress
from typing import Final

from celery_exclusive import notices
from celery_exclusive.core.records import RENEWALS_PER_TTL
from celery_exclusive.leases.keeper import Keeper, Known, locked_out
from celery_exclusive.leases.lease import Lease
from celery_exclusive.leases.repeated_job import RepeatedJob
from celery_exclusive.seams.python import native, original
from celery_exclusive.stores.base import Store
from celery_exclusive.system.threads import NativeThread


class LocalHeartbeat:
    """Keeps the leases that this process acquired without a worker, with a keeper for each store.

    Its thread ends a beat after the last lease. A lease whose owner was deleted expires.
    """

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Drop all state, since a forked child has neither the leases nor the thread of its parent."""
        self._pid = os.getpid()
        self._owners: dict[Lease, weakref.ref[object]] = {}
        self._guard = native("RLock")()  # a signal handler may acquire a lock while it is held
        self._sooner: queue.SimpleQueue[None] = original("queue", "SimpleQueue")()
        self._period: float | None = None
        self._keepers: dict[Store, Keeper] = {}

    @property
    def is_beating(self) -> bool:
        return self._period is not None

    def learn(self, store: Store) -> None:
        """Read the epoch of a store before it grants the first lease, or the first after a pause."""
        if self._pid != os.getpid():  # forked behind Python's back, as uWSGI does
            self.start_anew()
        if not self.is_beating or store not in self._keepers:
            self._keepers[store] = Keeper(store)

    def known(self, store: Store) -> Known | None:
        keeper = self._keepers.get(store)
        return keeper.known if keeper else None

    def add(self, lease: Lease, owner: object) -> None:
        """Renew this lease from now on, as long as its owner exists."""
        with self._guard:
            self._owners[lease] = weakref.ref(owner)
            period = lease.ttl / RENEWALS_PER_TTL
            if self._period is None:
                try:
                    NativeThread(self._run).start()
                except RuntimeError as error:  # the process is about to end, or may have no more threads
                    notices.trouble(
                        f"the lease on lock {lease.key} is not renewed and expires after its ttl", error
                    )
                    return
                self._period = period
            elif period < self._period:
                self._period = period
                self._sooner.put(None)

    def owner(self, lease: Lease) -> object | None:
        """Return the owner of a lease, if this process renews it."""
        with self._guard:
            owner = self._owners.get(lease)
        return owner and owner()

    def owner_of(self, id: str) -> object | None:
        """Return the owner of the lease whose claim has this id, if this process renews it."""
        with self._guard:
            return next((owner() for lease, owner in self._owners.items() if lease.is_of(id)), None)

    def remove(self, lease: Lease) -> None:
        """Stop renewing and restoring this lease, which is about to be released."""
        lease.end()
        with self._guard:
            self._owners.pop(lease, None)

    def _run(self) -> None:
        trouble = RepeatedJob("the renewal of the leases of lock()")
        while self._has_leases_when_due(trouble):
            with trouble:
                self._beat()

    def _has_leases_when_due(self, trouble: RepeatedJob) -> bool:
        """Wait until a beat is due; return whether leases are left. Without leases the thread ends."""
        with suppress(queue.Empty):
            self._sooner.get(timeout=trouble.pause(self._period or 0))
        with self._guard:
            ownerless = [lease for lease, owner in self._owners.items() if owner() is None]
            for lease in ownerless:
                del self._owners[lease]
            self._period = min((lease.ttl / RENEWALS_PER_TTL for lease in self._owners), default=None)
            has_leases = self.is_beating
        for lease in ownerless:
            notices.forgotten(lease.key, lease.ttl)
        return has_leases

    def _beat(self) -> None:
        with self._guard:
            leases = list(self._owners)
        errors: list[Exception] = []
        for store in {lease._store for lease in leases}:
            own = [lease for lease in leases if lease._store is store]
            try:
                if store not in self._keepers:  # forked behind Python's back
                    self._keepers[store] = Keeper(store)
                beat = self._keepers[store].beat(own, min(lease.ttl for lease in own) / RENEWALS_PER_TTL)
                if beat.has_lost_data:
                    notices.restored(store.url, [lease.key for lease in own])
                if beat.locked:
                    raise locked_out(store, beat.locked)
            except Exception as error:  # noqa: BLE001 - raised when the other stores have had their turn
                errors.append(error)
        if errors:
            raise errors[0]


heartbeat: Final = LocalHeartbeat()
"""The heartbeat of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=heartbeat.start_anew)
