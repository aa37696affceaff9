"""The unique lease of one delivery on its way through the gate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from celery.exceptions import Reject

from celery_exclusive import notices
from celery_exclusive.core.document import Phase
from celery_exclusive.core.operations import Answer, Held, Request
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
        self.claim, self.until, self.queued_ttl = unique.claim, unique.until, unique.queued_ttl
        self.is_taken = unique.is_taken
        self.ask = ask
        self.may_hold = self.until != PERIOD
        self.is_in = delivery.is_retry or delivery.may_be_in_line

    def admit(self) -> Held | None:
        """Do what a publisher without this library has not done; Held: it is a duplicate."""
        return (
            None
            if self.is_taken or self.is_in
            else self._own(self.queued_ttl, "period" if self.until == PERIOD else "queued")
        )

    def wait(self, *, behind_itself: bool = False) -> None:
        """Keep the key for as long as the message may wait. One that has ended meanwhile stays free.

        A copy that waits behind its own run leaves it running.
        """
        if self.until != PERIOD:
            phase: Phase | None = None if behind_itself else "queued"
            with suppress(StoreUnavailable):
                keep_for_queue(self.installation, self.claim, self.queued_ttl, phase)

    def start(self) -> Held | None:
        """The body is about to begin; Held: its lease had run out, and another one has the key."""
        if self.until == FINISHED:
            return self._own(self.claim.ttl, "running")
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

    def _own(self, ttl: int, phase: Phase) -> Held | None:
        answer = self.ask(self.claim.key, self.claim.own(ttl, phase))
        if not isinstance(answer, Held):
            return None
        self.may_hold = False
        ours = any(notices.task_id(rival.id) in self.delivery.kin for rival in answer.by)
        return None if self.is_in or ours else answer
