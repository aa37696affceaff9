"""The unique lease of one delivery on its way through the gate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from celery.exceptions import Reject

from celery_exclusive import notices
from celery_exclusive.claim import Claim
from celery_exclusive.core.document import Phase
from celery_exclusive.core.operations import Answer, Held, Renew, Request
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.lease import finish
from celery_exclusive.options import FINISHED, PERIOD, STARTED
from celery_exclusive.stores.deadline import deadline
from celery_exclusive.worker.delivery import Delivery, UniqueClaim
from celery_exclusive.worker.endings import keep_for_queue
from celery_exclusive.worker.patience import Patience
from celery_exclusive.worker.undisturbed import undisturbed

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


class Uniqueness:
    """What becomes of a unique lease while its message is taken in, waits, runs and ends.

    It is that of the message: every delivery of it is itself. Who has been let in once, as a retry or what
    the broker delivers again, takes the key if that is free, and runs either way.
    """

    def __init__(
        self,
        installation: Installation,
        delivery: Delivery,
        unique: UniqueClaim,
        *,
        patience: Patience,
        ask: Callable[[str, Request], Answer],
    ) -> None:
        self.installation, self.delivery, self.patience = installation, delivery, patience
        self.lease, self.claim, self.until = unique, unique.claim, unique.until
        self.ask = ask
        self.may_hold = self.until != PERIOD
        self.is_in = delivery.is_retry or delivery.may_be_in_line

    def admit(self) -> Held | None:
        """Do what a publisher without this library has not done; Held: it is a duplicate."""
        if self.lease.is_taken or self.is_in:
            return None
        return self._lost(self._own(self.lease.queued_ttl, "period" if self.until == PERIOD else "queued"))

    def wait(self) -> None:
        """Keep the key for as long as the message may wait, unless it runs, or has ended meanwhile."""
        if self.until != PERIOD:
            with suppress(StoreUnavailable):
                keep_for_queue(self.installation, self.lease)

    def wait_for(self, x: Claim) -> None:
        """The same in the line of this lock.

        Another delivery that seems to run does so only if it has the lock: it has died otherwise.
        """
        if self.until == PERIOD:
            return
        store, key, id = self.installation.store, self.claim.key, self.claim.id
        with suppress(StoreUnavailable):
            if keep_for_queue(self.installation, self.lease) or not self.is_in:
                return
            runs = id in [holder.id for holder in store.inspect(x.key).holders]
            store.renew([(key, Renew(id, None, self.lease.queued_ttl, None if runs else "again"))])

    def start(self) -> Held | None:
        """The body is about to begin; Held: its lease had run out, and another body has the key.

        From a call that has got the key since, and is still queued for the first time, it takes it: if each
        left it to the next one, in a queue that is longer than `queued_ttl`, none would run.
        """
        if self.until == FINISHED:
            held = self._own(self.claim.ttl, "running")
            if held and held.by[0].phase == "queued" and not self.is_in:
                rival = replace(self.claim, id=held.by[0].id)
                held = self._own(self.claim.ttl, "running", rival)
            return self._lost(held)
        if self.until == STARTED:
            self.ask(self.claim.key, self.claim.release(done=False))
            self.may_hold = False
        return None

    def end(self, error: BaseException | None) -> None:
        """The body has ended: nothing that is published from now on finds the key taken by it.

        Unless it comes again, or its process ends. It raises nothing: finished work stays finished.
        """
        if not self.may_hold or not (error is None or isinstance(error, Exception)):
            return
        is_given_back = isinstance(error, Reject) and getattr(error, "requeue", False)
        with undisturbed():
            if self.delivery.late and (is_given_back or isinstance(error, MemoryError)):
                self.wait()
            else:
                self.release()

    def release(self) -> None:
        """Give the key back, if this delivery may have it; what fails is tried again, or owed."""
        if not self.may_hold:
            return
        store, release = self.installation.store, self.claim.release(done=False)
        try:
            with deadline(self.patience.rest()):
                finish(lambda: store.apply(self.claim.key, release))
        except Exception as error:  # noqa: BLE001 - the task has its result
            notices.trouble(f"the unique lease on {self.claim.key} cannot be given back yet", error)
        else:
            self.may_hold = False

    def _own(self, ttl: int, phase: Phase, former: Claim | None = None) -> Held | None:
        answer = self.ask(self.claim.key, self.claim.own(ttl, phase, former))
        return answer if isinstance(answer, Held) else None

    def _lost(self, held: Held | None) -> Held | None:
        """Note who has the key instead; None: it does not matter."""
        if held is None:
            return None
        self.may_hold = False
        is_ours = any(notices.task_id(rival.id) in self.delivery.kin for rival in held.by)
        return None if self.is_in or is_ours else held
