"""The heartbeat: one thread of the worker's main process keeps the leases of all its running tasks.

A thread of the child would starve under C code that holds the GIL, a timer of the main loop in a broker
outage, a greenlet while another one computes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.endings import run_ended
from celery_exclusive.core.operations import Applied
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.leases.lease import Known, epoch_in_time, locked_out
from celery_exclusive.leases.trouble import Trouble
from celery_exclusive.messages.namespace import LIFE, keep_namespace
from celery_exclusive.options.values import declared_options
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.threads import NativeThread, original, run_in_hub
from celery_exclusive.worker.other_stores import OtherStores
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.roster import Roster
from celery_exclusive.worker.unread import Unread

if TYPE_CHECKING:
    from celery_exclusive.services import Services


Read = Callable[[], Received | None]
Process = Callable[[], int | None]

_LARGE = 1000
"""Bytes of a body that is not kept while its run is tracked."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a renewal under way."""


class Heartbeat:
    """Renews, three times per ttl, the leases of all tasks that this process or its children execute.

    Each child notes in the roster what it executes, which Celery may have forgotten. A refused renewal is no
    alarm: the lease may not be granted yet. When the store has lost its data, the heartbeat restores the
    leases that are held.
    """

    def __init__(self, services: Services, broker: str, roster: Roster | None = None) -> None:
        self.services, self.broker, self.roster = services, broker, roster
        self.period = self._longest = min(services.settings.exclusive_ttl, LIFE) / RENEWALS_PER_TTL
        self._see(Known(services.store.epoch(), time.monotonic()))
        self._elsewhere = OtherStores(services, self._known.epoch)
        self._deliveries: dict[str, tuple[Read, Process, float]] = {}
        self._periods: dict[str, float] = {}
        self._held: dict[str, list[Claim]] = {}
        self._expired: set[Claim] = set()
        self._calls: queue.SimpleQueue[bool] = original("queue", "SimpleQueue")()
        self._thread = NativeThread(self._run)

    @property
    def is_for_children(self) -> bool:
        """Whether tasks run in children of this process."""
        return self.roster is not None

    @property
    def keeps_leases(self) -> bool:
        return bool(self._deliveries)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._calls.put(False)
        self._thread.join(at_most(_FAREWELL))

    def known(self) -> Known | None:
        """The epoch of the store, as it was last seen."""
        return self._known

    def expect(self, task: Any, unread: Unread, read: Read, process: Process) -> None:
        """Renew the leases of this delivery whenever a child executes it, until it is untracked.

        A beat reads those that are executed then: few are. One that is too large to be kept, or that names
        another store, is read now.

        Parameters:
            read: reads the delivery.
            process: returns the pid of the child of which Celery knows that it has begun.
        """
        if unread.is_new and len(unread.content[0]) <= _LARGE and self._elsewhere.is_own(unread.our_header):
            period = self._periods.get(task.name)
            if period is None:
                ttls = [self.services.ttl(option) for option in declared_options(task) if option]
                period = self._periods[task.name] = self._period_of(ttls)
            self._track(unread.token, read, process, period)
        elif delivery := read():
            self.track(delivery, process)

    def track(self, delivery: Received, process: Process = lambda: None) -> None:
        """Renew the leases of this delivery whenever it is executed, until it is untracked."""
        self._elsewhere.note(delivery)
        if len(delivery.body) > _LARGE:  # Celery may have forgotten the message long before its end
            delivery = replace(delivery, content=(b"", *delivery.content[1:]))
        period = self._period_of([claim.ttl for claim in delivery.leases])
        self._track(delivery.token, lambda: delivery, process, period)

    def _period_of(self, ttls: list[int]) -> float:
        """Return how often leases are renewed that last for so many microseconds."""
        return min([self._longest, *(ttl / SECOND / RENEWALS_PER_TTL for ttl in ttls)])

    def _track(self, token: str, read: Read, process: Process, period: float) -> None:
        self._deliveries[token] = (read, process, period)
        if period < self.period:
            self.period = period
            self._calls.put(True)
        if self.roster and len(self._deliveries) > self.roster.slots:
            self._untrack_one()

    def untrack(self, token: str) -> None:
        """Renew and restore the leases of the delivery with this token no more."""
        self._deliveries.pop(token, None)
        self._held.pop(token, None)

    def note_granted(self, delivery: Received, claims: Collection[Claim]) -> None:
        """Renew these leases, which a body in this process was granted."""
        self._held[delivery.token] = list(claims)
        self.track(delivery)

    def note_releasing(self, delivery: Received, claims: Collection[Claim] | None = None) -> None:
        """Restore these leases, or all, no more: they are about to be released."""
        if held := self._held.get(delivery.token):
            released = held if claims is None else claims
            self._held[delivery.token] = [claim for claim in held if claim not in released]

    def release_all(self) -> None:
        """Release the leases of the processes of the pool, now that they are gone.

        A child that lives all the same keeps its leases.
        """
        executed = self._executed()
        for token, (read, process, _) in list(self._deliveries.items()):
            if token not in executed and (delivery := read()):
                self._release_later(delivery, will_be_redelivered=delivery.acks_late or process() is None)

    def notice_epoch(self, epoch: str) -> None:
        """Beat soon, if this is another epoch of the store than that of the last beat."""
        if epoch not in ("", self._known.epoch):
            self._calls.put(True)

    def _run(self) -> None:
        trouble = Trouble("the renewal of leases")
        while self._rest(trouble.pause(self.period)):
            with trouble, forks_wait():
                self.beat()

    def _rest(self, period: float) -> bool:
        """Wait until the next beat is due; False: no more."""
        with suppress(queue.Empty):
            return self._calls.get(timeout=period)
        return True

    def beat(self) -> None:
        """Renew all leases; if the store has lost its data, restore those that are held."""
        self._choose_period()
        now, executed = time.monotonic(), self._executed()
        renewed, locked = self._renew(
            [claim for delivery, _ in executed.values() for claim in delivery.leases]
        )
        epoch = epoch_in_time(self.services.store, self.period)
        if epoch == self._known.epoch:
            self._expired = {claim for _, held in executed.values() for claim in held} - renewed
        else:
            count = sum(self._restore(delivery) for delivery, _ in executed.values())
            notices.data_lost(self.services, count)
        self._see(Known(epoch, 0 if self._expired else now))
        keep_namespace(self.services, self.broker)
        self._elsewhere.report(epoch)
        if locked:
            raise locked_out(self.services.store, locked)

    def _choose_period(self) -> None:
        """Beat as often from now on as the leases need that are tracked now."""
        self.period = self._longest  # before the others are read: one that is tracked meanwhile calls then
        self.period = min([self._longest, *(period for *_, period in list(self._deliveries.values()))])

    def _renew(self, claims: list[Claim]) -> tuple[set[Claim], list[str]]:
        """Renew the leases of these claims; return those that have one, and the keys that others lock."""
        if not claims:
            return set(), []
        lives = self.services.store.renew([(claim.key, claim.renew()) for claim in claims])
        answers = list(zip(claims, lives, strict=True))
        return {claim for claim, is_alive in answers if is_alive}, [
            claim.key for claim, is_alive in answers if is_alive is None
        ]

    def _see(self, known: Known) -> None:
        self._known = known
        if self.roster:
            self.roster.see(known)

    def _executed(self) -> dict[str, tuple[Received, list[Claim]]]:
        """What is executed now, by its token: the delivery, and the leases that it holds."""
        found = self.roster.read() if self.roster else None
        executed = {}
        for token, (read, *_) in list(self._deliveries.items()):
            if (found is not None and token not in found) or not (delivery := read()):
                continue
            if found is None:
                executed[token] = (delivery, self._held.get(token, []))
            else:
                flags = zip(delivery.leases, found[token], strict=False)
                executed[token] = (delivery, [claim for claim, is_held in flags if is_held])
        return executed

    def _holds(self, delivery: Received, claim: Claim) -> bool:
        """Whether it is executed still, and holds this lease."""
        _, held = self._executed().get(delivery.token, (delivery, ()))
        return claim in held

    def _restore(self, delivery: Received) -> int:
        """Restore the leases that it holds; return how many."""
        count = 0
        for claim in delivery.leases:
            if claim in self._expired or not self._holds(delivery, claim):
                continue
            reply = self.services.store.apply(claim.key, claim.restore())
            count += reply.answer == Applied(True)
            if not self._holds(delivery, claim):  # it has ended meanwhile, maybe before it was restored
                is_lock = claim == delivery.exclusive
                self._release_later(
                    replace(delivery, unique=None) if is_lock else replace(delivery, exclusive=None)
                )
        return count

    def _untrack_one(self) -> None:
        """Untrack the first that nobody executes: Celery has forgotten it, and no child has begun it."""
        executed = self._executed()
        first = next((token for token in list(self._deliveries) if token not in executed), None)
        if first is not None:
            del self._deliveries[first]

    def _release_later(self, delivery: Received, *, will_be_redelivered: bool = False) -> None:
        operations = run_ended(delivery.at_present(), done=False, will_be_redelivered=will_be_redelivered)
        run_in_hub(self.services.releaser.add, *operations, before=partial(self.untrack, delivery.token))
