"""The heartbeat: one thread of the worker's main process keeps the leases of all its runs.

A thread of the child would starve under C code that holds the GIL, a timer of the main loop in a broker
outage, a greenlet while another one computes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.leases.keeper import Keeper, locked_out
from celery_exclusive.leases.repeated_job import RepeatedJob
from celery_exclusive.messages.namespace import LIFE, keep_namespace
from celery_exclusive.seams.python import original
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.threads import NativeThread
from celery_exclusive.worker.interruption import Interrupter, look_every
from celery_exclusive.worker.other_stores import OtherStores
from celery_exclusive.worker.roster import Roster, Slot

if TYPE_CHECKING:
    from celery_exclusive.options.values import Values
    from celery_exclusive.services import Services
    from celery_exclusive.stores.workers import WorkerRecord

_FAREWELL = 10
"""Seconds for which a worker that stops waits for a renewal under way."""


class Heartbeat:
    """Renews, three times per ttl, the leases of all runs in the roster, and restores those that they hold.

    A refused renewal is no alarm: the lease may not be granted yet. The heartbeat also keeps the namespace of
    the worker, with the worker's `record`, and looks for superseded runs, as often as their `grace` needs.
    """

    def __init__(
        self, services: Services, broker: str, roster: Roster, record: WorkerRecord | None = None
    ) -> None:
        self.services, self.broker, self.roster, self._record = services, broker, roster, record
        self.period = self._longest = min(services.settings.exclusive_ttl, LIFE) / RENEWALS_PER_TTL
        self._look = self._longest
        self._keeper = Keeper(services.store)
        roster.see(self._keeper.known)
        self._interrupter = Interrupter(services.store, roster)
        self.other_stores = OtherStores(services, self._keeper.known.epoch)
        self._lost: set[Claim] = set()
        self._runs: Sequence[Slot] = ()
        self._calls: queue.SimpleQueue[bool] = original("queue", "SimpleQueue")()
        self._thread = NativeThread(self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._calls.put(False)
        self._thread.join(at_most(_FAREWELL))

    def notice_epoch(self, epoch: str) -> None:
        """Beat soon, if the epoch of the store is another one than at the last beat."""
        if epoch not in ("", self._keeper.known.epoch):
            self._calls.put(True)

    def look_more_often_for(self, task: Any, values: Values | None = None) -> None:
        """Look at the roster as often as the leases of this task may need it, with these values of a call."""
        options = (self.services.exclusive(task, values), self.services.unique(task, values))
        look = min(map(self.services.ttl, options)) / SECOND / RENEWALS_PER_TTL
        look = min(look, look_every(options[0].grace_s if options[0] else None))
        if look < self._look:
            self._look = look
            self._calls.put(True)

    def _run(self) -> None:
        trouble = RepeatedJob("the renewal of leases")
        while self._rest(trouble):
            with trouble, forks_wait():
                self.beat()

    def _rest(self, trouble: RepeatedJob) -> bool:
        """Wait until a beat is due. False: the heartbeat ends. A new run may need a beat sooner."""
        began = time.monotonic()
        while (left := began + trouble.pause(self.period) - time.monotonic()) > 0:
            with suppress(queue.Empty):
                return self._calls.get(timeout=min(left, self._look))
            self._leases()
        return True

    def beat(self) -> None:
        """Renew all leases; if the store has lost its data, restore those that are held."""
        leases = self._leases()
        self._lost &= {lease._claim for lease in leases}
        beat = self._keeper.beat(leases, self.period)
        if self._lost:
            self._keeper.known = replace(self._keeper.known, at=0)
        if beat.has_lost_data:
            notices.data_lost(self.services, len(beat.restored))
            self._note_loss()
        self.roster.see(self._keeper.known)
        self.broker = keep_namespace(self.services, self.broker, self._record)
        self.other_stores.report(self._keeper.known.epoch)
        self._interrupter.look(self._runs)
        if beat.locked:
            raise locked_out(self.services.store, beat.locked)

    def _note_loss(self) -> None:
        """Note in the record of the worker that the store has lost its data, for `locks doctor`."""
        if self._record:
            self.services.store.forget_worker(self._record)
            self._record = replace(self._record, lost=int(time.time()))

    def _leases(self) -> list[_RunLease]:
        """Return the leases of all runs, and note the period that they need."""
        self._runs = self.roster.runs()
        leases = [
            _RunLease(claim, self.roster, slot, self._lost)
            for slot in self._runs
            for claim in slot.claims.leases
        ]
        ttls = [lease._claim.ttl for lease in leases]
        graces = [look_every(slot.claims.grace) for slot in self._runs]
        self.period = min([self._longest, *(ttl / SECOND / RENEWALS_PER_TTL for ttl in ttls), *graces])
        return leases


@dataclass(slots=True)
class _RunLease:
    """A lease of a run, with the slot of the run as it was before the beat."""

    _claim: Claim
    _roster: Roster
    _slot: Slot
    _lost: set[Claim]
    _was_held: bool = field(init=False)

    def __post_init__(self) -> None:
        self._was_held = self._claim in self._slot.held

    @property
    def is_over(self) -> bool:
        return self._claim in self._lost or not self._roster.holds(self._claim, self._slot)

    def renewed(self, asked: float, *, anew: bool = False) -> None: ...

    def end(self) -> None:
        if self._was_held:
            self._lost.add(self._claim)
