"""The unique lease of a run on a worker, from its admission to its end."""

from __future__ import annotations

from functools import partial

from celery_exclusive import notices
from celery_exclusive.core.claim import UniqueClaim, task_id
from celery_exclusive.core.endings import body_ended
from celery_exclusive.core.operations import Applied, Release, Requeue
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.leases.lease import Lease
from celery_exclusive.run import UniqueLease
from celery_exclusive.services import Services
from celery_exclusive.system.signals import undisturbed
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.roster import Slot
from celery_exclusive.worker.store_wait import StoreWait


class WorkerUniqueLease(UniqueLease):
    """The unique lease of one delivery. `may_hold`: the end of the delivery has to release it.

    `lease` is the `self.lease` of a body without a lock.
    """

    lease: Lease | None = None

    def __init__(
        self,
        services: Services,
        slot: Slot,
        delivery: Received,
        task: str,
        unique: UniqueClaim,
        store_wait: StoreWait,
    ) -> None:
        super().__init__(unique.claim, unique.until, may_hold=not unique.ends_by_clock)
        self.services, self.slot, self.task = services, slot, task
        self.delivery, self.store_wait = delivery, store_wait
        self.unique = unique
        self.is_uncertain = False  # whether a request that was repeated may have released it before

    def end(self, error: BaseException | None) -> None:
        """Release the key, since the body has ended, before callbacks and next steps are published.

        A message that is redelivered keeps the key, and if the process exits, the main process decides. This
        raises nothing: finished work stays finished.
        """
        if not self.may_hold or not (error is None or isinstance(error, Exception)):
            return
        if self.lease:
            self.lease.end()
        self.slot.let_go(self.claim)
        delivery, will_be_redelivered = self.delivery, self.delivery.is_redelivered_for(error)
        if will_be_redelivered:
            delivery = delivery.at_present()
        release = body_ended(delivery, will_be_redelivered=will_be_redelivered)
        with undisturbed():
            answer = self._ask(release) if release else None
            if answer == Applied(True):
                self.may_hold = (
                    will_be_redelivered  # if Celery does not requeue it after all, its end releases it
                )
            elif will_be_redelivered:
                self._log_if_lost(answer)

    def release(self) -> None:
        """Release the leases of this delivery and of its publish, which holds the key until a body begins."""
        if self.may_hold:
            answers = [self._ask(claim.release()) for claim in self.unique.claims]
            self.may_hold = None in answers
            self._log_if_lost(answers[0])

    def _ask(self, operation: Release | Requeue) -> object:
        """Return the answer. None: there was none; the release is retried at the end of the run, or owed."""
        attempts = Attempts()
        try:
            with self.store_wait.end:
                reply = attempts.make(partial(self.services.store.apply, self.claim.key, operation))
        except Exception as error:  # noqa: BLE001 - the task has its result
            notices.trouble(
                f"unique key {self.claim.key} could not be released; the release is retried", error
            )
            self.is_uncertain = True
            return None
        self.is_uncertain |= reply.is_repeated or attempts.interruption is not None
        return reply.answer

    def _log_if_lost(self, answer: object) -> None:
        """Log a lease that was lost before its body ended, but not to a retry or replacement."""
        is_lost = self.lease and answer == Applied(False) and not self.is_handed_over
        if is_lost and not self.is_uncertain:
            notices.lease_lost(self.services, self.task, task_id(self.delivery.id), self.claim.key)
