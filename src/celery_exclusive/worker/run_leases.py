"""The leases of one run, from their grant to their release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices, outcomes
from celery_exclusive.core.claim import WINDOW
from celery_exclusive.core.endings import HandOver, body_ended, leave_no_copy
from celery_exclusive.core.operations import Applied, Granted, Release, Remove, Requeue
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreError
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.leases.lease import Lease
from celery_exclusive.outcomes import Subject
from celery_exclusive.run import Run, UniqueLease
from celery_exclusive.system.deadline import Budget, deadline
from celery_exclusive.system.signals import without_soft_limit

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Admission
    from celery_exclusive.core.claim import Claim, UniqueClaim
    from celery_exclusive.worker.context import WorkerContext
    from celery_exclusive.worker.reading import Received
    from celery_exclusive.worker.roster import Slot


class LeasedRun(Run):
    """The run of a delivery: notes the leases that it is granted, and releases them.

    `is_uncertain`: a request without an answer may have released the unique key. `is_handed_over`: the run
    holds the lock under the id of its retry. `is_told`: receivers know that the body begins.
    """

    hand_over: HandOver | None = None
    is_uncertain = is_handed_over = is_told = False

    def __init__(
        self, task: Any, delivery: Received, worker: WorkerContext, slot: Slot, task_id: str, end: Budget
    ) -> None:
        # Its body is over until it begins: Celery may end it without.
        super().__init__(task_id, body_over=True, end=end)
        self.task, self.delivery, self.worker, self.slot = task, delivery, worker, slot
        self.services = worker.services
        if unique := delivery.unique:
            self.unique = UniqueLease(unique.claim, unique.until, not unique.ends_by_clock)

    def note_granted(self, outcome: Admission, asked_at: float) -> None:
        """Note the leases that are held, for the body, for its end, and for the heartbeat."""
        exclusive, unique, option = self.delivery.exclusive, self.unique, self.delivery.exclusive_option
        held: list[Claim] = []
        if exclusive and outcome.fence:
            held.append(exclusive)
            self.lease = self._lease(exclusive, outcome.fence, asked_at)
            if option and option.keep_on_retry:
                self.keeps_on_retry = True
        if unique:
            unique.may_hold = outcome.may_hold_unique
            if outcome.may_hold_unique:
                held.append(unique.claim)
            if outcome.unique_fence and not exclusive:
                self.unique_lease = self._lease(unique.claim, outcome.unique_fence, asked_at)
        if outcome.kind == "run" and self.delivery.last_chance:
            held.append(self.delivery.last_chance)
        if outcome.kind == "run" or outcome.has_lock:
            self.slot.hold(*held)

    def _lease(self, claim: Claim, fence: int, asked_at: float) -> Lease:
        option = self.delivery.lock_option(claim.key)
        until, known = asked_at + claim.ttl / SECOND, self.worker.roster.known
        may_be_superseded = option is not None and option.supersedes
        return Lease(fence, claim, self.services.store, until, known, may_be_superseded)

    def end_body(self, error: BaseException | None) -> None:
        """Release the unique key, since the body has ended, before callbacks and next steps are published.

        A message that is redelivered keeps the key, and if the process exits, the main process decides. This
        raises nothing: finished work stays finished.
        """
        super().end_body(error)
        unique = self.unique
        if not unique or not unique.may_hold or not (error is None or isinstance(error, Exception)):
            return
        if self.unique_lease:
            self.unique_lease.end()
        self.slot.hold(*[claim for claim in self.slot.held if claim != unique.claim])
        delivery, will_be_redelivered = self.delivery, self.delivery.is_redelivered_for(error)
        if will_be_redelivered:
            delivery = delivery.at_present()
        release = body_ended(delivery, will_be_redelivered=will_be_redelivered)
        with without_soft_limit():
            answer = self._ask(unique.claim.key, release) if release else None
            if answer == Applied(True):  # if Celery does not requeue it after all, its end releases it
                unique.may_hold = will_be_redelivered
            elif will_be_redelivered:
                self._log_if_lost(unique, answer)

    def hand_over_lock(self, id: str, queued_ttl: int) -> bool:
        """Leave the lock to a retry, as which the run holds it until its end. Return whether it may do so."""
        lock, lease, held = self.delivery.exclusive, self.lease, self.slot.held
        if lock is None or lease is None or self.hand_over:
            return False
        self.hand_over = hand_over = HandOver(lock, id, queued_ttl)
        self.slot.hold(*[claim for claim in held if claim != lock])  # it would be restored beside the other
        attempts, store = Attempts(2), self.services.store
        try:
            with deadline(self.end.left):
                answer = attempts.make(partial(store.apply, lock.key, hand_over.begin())).answer
        except StoreError as error:
            outcomes.lock_not_left(self.subject(lock.key), error)
            answer = None
        self.is_handed_over = isinstance(answer, Granted)
        if self.is_handed_over:
            self.slot.hand_over(hand_over.claim)
            lease.hand_over_to(hand_over.claim)
        else:
            self.slot.hold(*held)
        if answer is not None and not self.is_handed_over:  # the run has lost its lease
            self.hand_over = None
        if attempts.interruption:
            raise attempts.interruption
        return self.hand_over is not None

    def release(self, outcome: Admission | None, *, done: bool) -> None:
        """Release the leases at the end of an execution. Never raises after successful work.

        `outcome` None: it was interrupted before it had the keys. `done`: no redelivery comes.
        """
        self.keeps_on_retry = False
        may_hold_lock = outcome is None or outcome.kind == "run" or outcome.has_lock
        if outcome and outcome.kind in ("skip", "fail") and not may_hold_lock:  # its run may have left it one
            self.services.releaser.add_retry(self.task_id, self.delivery.header)
        was_at_lock = may_hold_lock or bool(outcome and outcome.ends_wait)
        try:
            interruption = self._release_lock(done=done) if was_at_lock else None
        except Exception as error:  # noqa: BLE001 - the task has its result
            lock = self.delivery.key
            notices.trouble(
                f"task {self.task_id} could not release lock {lock}; the release is retried", error
            )
            self.release_later(done=done)
            return
        # If a child dies in its body, the main process knows whether the message is redelivered.
        is_over = done or (self.worker.runs_in_main and not self.delivery.acks_late)
        if is_over and self.delivery.unique:
            self._release_unique_key(self.delivery.unique)
        if (chance := self.delivery.last_chance) and (outcome is None or outcome.kind == "run"):
            self.services.releaser.add((chance.key, chance.release("done" if done else "open")))
        if done and outcome and outcome.kind in ("run", "skip", "fail"):
            self._end_window()
        if self.is_told and self.body_lease:
            outcomes.released(self.subject(self.body_lease.key), self.body_lease.held_s)
        if interruption and not isinstance(interruption, Exception):
            raise interruption

    def _release_lock(self, *, done: bool) -> BaseException | None:
        """Release the lease of the lock; return the exception of a signal handler meanwhile, if any."""
        if self.lease:
            self.lease.end()
        self.slot.hold()  # none is restored from now on
        exclusive, services, relay = self.delivery.exclusive, self.services, self.worker.relay
        if exclusive is None:
            return None
        store: Any = services.store
        attempts, found = Attempts(2), False
        interruption: BaseException | None = None
        for release in self._releases(exclusive, done=done):
            with self.end:
                reply = attempts.make(partial(store.apply, exclusive.key, release, follows_up=relay is None))
            interruption = interruption or attempts.interruption
            if relay and (reply.wake or reply.aside):
                try:
                    services.courier.follow_up(relay.hand_on(reply))
                except BaseException as error:  # noqa: BLE001 - a signal's: it is raised when all is released
                    interruption = interruption or error
            found |= reply.answer == Applied(True)
        if self.lease and not (found or attempts.is_repeated or interruption):
            self._tell_lost(self.lease)
        return interruption

    def _releases(self, lock: Claim, *, done: bool) -> Iterable[Requeue | Release | Remove]:
        """Return the requests that end the lease of the lock, or leave it to the retry of this run."""
        if not self.hand_over:
            return [lock.release("done" if done else "open")]
        is_published = self.has_retried
        return self.hand_over.run_ended(has_lease=self.is_handed_over, is_published=is_published, done=done)

    def _release_unique_key(self, claimed: UniqueClaim) -> None:
        """Release the leases of this delivery and of its publish, which holds the key until a body begins."""
        unique = self.unique
        if unique and unique.may_hold:
            answers = [self._ask(claim.key, claim.release()) for claim in claimed.claims]
            unique.may_hold = None in answers
            self._log_if_lost(unique, answers[0])
            if unique.may_hold:  # the store has not answered
                self.release_later(done=True)

    def _end_window(self) -> None:
        """Let the store drop the copies of the offers of this message that have not come yet."""
        delivery = self.delivery
        if delivery.unique and delivery.unique.until == WINDOW and delivery.may_be_in_line:
            window = delivery.unique.claim
            if self._ask(window.key, leave_no_copy(window)) is None:
                self.release_later(done=True)

    def _ask(self, key: str, operation: Release | Requeue | Remove) -> object:
        """Return the answer. None: there was none; the release is retried at the end of the run, or owed."""
        attempts = Attempts()
        try:
            with self.end:
                reply = attempts.make(partial(self.services.store.apply, key, operation))
        except Exception as error:  # noqa: BLE001 - the task has its result
            notices.trouble(f"unique key {key} could not be released; the release is retried", error)
            self.is_uncertain = True
            return None
        self.is_uncertain |= reply.is_repeated or attempts.interruption is not None
        return reply.answer

    def _log_if_lost(self, unique: UniqueLease, answer: object) -> None:
        """Log a lease that was lost before its body ended, but not to a retry or replacement."""
        lease = self.unique_lease
        is_lost = answer == Applied(False) and not unique.is_handed_over
        if lease and is_lost and not self.is_uncertain:
            self._tell_lost(lease)

    def _tell_lost(self, lease: Lease) -> None:
        outcomes.lease_lost(self.services, self.subject(lease.key), lease.held_s)
        self.is_told = False  # it is not released

    def subject(self, key: str | None = None) -> Subject:
        return Subject(self.task.name, self.task_id, key or self.delivery.key, tell=self.note)

    def release_later(self, *, done: bool, redelivered: bool = False) -> None:
        """Let the background releaser release the leases when the store answers again.

        `redelivered`: no body has begun, and the message comes again. With early or late acknowledgement it
        keeps its unique key, and the lock that its run has left to it.
        """
        services, delivery, lock = self.services, self.delivery.at_present(), self.delivery.exclusive
        if lock and self.hand_over:
            services.releaser.add(*((lock.key, release) for release in self._releases(lock, done=done)))
        if lock and redelivered and delivery.keeps_lock:
            requeue = Requeue(lock.id, lock.token, services.queued_ttl(None))
            services.releaser.add((lock.key, requeue))
            delivery = replace(delivery, exclusive=None)
        redelivered = redelivered or (not done and delivery.acks_late)
        services.releaser.add_run(delivery, done=done, redelivered=redelivered)
