"""The leases of one execution, from their grant to their release."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.endings import run_ended
from celery_exclusive.core.operations import Applied
from celery_exclusive.core.records import SECOND
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.leases.lease import Lease
from celery_exclusive.worker.unique_lease import WorkerUniqueLease

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Outcome
    from celery_exclusive.core.claim import Claim
    from celery_exclusive.run import Run
    from celery_exclusive.services import Services
    from celery_exclusive.worker.context import WorkerContext
    from celery_exclusive.worker.received import Received
    from celery_exclusive.worker.roster import Slot
    from celery_exclusive.worker.store_wait import StoreWait


class RunLeases:
    """Notes the leases that an execution is granted in its run, and releases them at its end."""

    def __init__(
        self,
        services: Services,
        worker: WorkerContext,
        slot: Slot,
        delivery: Received,
        task: str,
        run: Run,
        store_wait: StoreWait,
    ) -> None:
        self.services, self.delivery, self.task = services, delivery, task
        self.run, self.store_wait = run, store_wait
        self.worker, self.slot = worker, slot
        self.unique: WorkerUniqueLease | None = None
        if delivery.unique:
            self.unique = run.unique = WorkerUniqueLease(
                services, slot, delivery, task, delivery.unique, store_wait
            )

    def note_granted(self, outcome: Outcome, asked_at: float) -> None:
        """Note the leases that are held, for the body, for its end, and for the heartbeat."""
        exclusive, unique = self.delivery.exclusive, self.unique
        held: list[Claim] = []
        seen, fence = exclusive, outcome.fence  # the lease that the body sees
        if exclusive and fence:
            held.append(exclusive)
        if unique:
            unique.may_hold = outcome.may_hold_unique
            if outcome.may_hold_unique:
                held.append(unique.claim)
            if not exclusive:
                seen, fence = unique.claim, outcome.unique_fence
        if seen and fence:
            until, known = asked_at + seen.ttl / SECOND, self.worker.roster.known
            lease = Lease(fence, seen, self.services.store, until, known)
            if exclusive:
                self.run.lease = lease
            elif unique:
                self.run.unique_lease = unique.lease = lease
        if outcome.kind == "run" or outcome.has_lock:
            self.slot.hold(*held)

    def release(self, outcome: Outcome | None, *, done: bool) -> None:
        """Release the leases at the end of an execution. Never raises after successful work.

        `outcome` is None if the execution was interrupted while it acquired the keys. `done`: its result is
        stored, and its message is not redelivered.
        """
        may_hold_lock = outcome is None or outcome.kind == "run" or outcome.has_lock
        try:
            interruption = self._release_lock(done=done) if may_hold_lock else None
        except Exception as error:  # noqa: BLE001 - the task has its result
            lock = self.delivery.key
            notices.trouble(
                f"task {self.run.task_id} could not release lock {lock}; the release is retried", error
            )
            self.owe(done=done)
            return
        # If a child dies in its body, the main process knows whether the message is redelivered.
        is_over = done or (self.worker.runs_in_main and not self.delivery.acks_late)
        if is_over and self.unique:
            self._release_unique_key(self.unique)
        if interruption and not isinstance(interruption, Exception):
            raise interruption

    def _release_lock(self, *, done: bool) -> BaseException | None:
        """Release the lease of the lock; return the exception of a signal handler meanwhile, if any."""
        if self.run.lease:
            self.run.lease.end()
        self.slot.hold()  # none is restored from now on
        exclusive, relay = self.delivery.exclusive, self.worker.relay
        if exclusive is None:
            return None
        release = exclusive.release("done" if done else "open")
        store: Any = self.services.store
        attempts = Attempts(2)
        with self.store_wait.end:
            reply = attempts.make(partial(store.apply, exclusive.key, release, follows_up=relay is None))
        interruption = attempts.interruption
        if relay and (reply.wake or reply.aside):
            try:
                self.services.courier.follow_up(relay.hand_on(reply))
            except BaseException as error:  # noqa: BLE001 - a signal's: it is raised when all is released
                interruption = interruption or error
        found = isinstance(reply.answer, Applied) and reply.answer.is_applied
        if self.run.lease and not (found or attempts.is_repeated or interruption):
            notices.lease_lost(self.services, self.task, self.run.task_id, exclusive.key)
        return interruption

    def _release_unique_key(self, unique: WorkerUniqueLease) -> None:
        unique.release()
        if unique.may_hold:  # the store has not answered
            self.owe(done=True)

    def owe(self, *, done: bool, will_be_redelivered: bool = False) -> None:
        """Let the background releaser release the leases when the store answers again.

        A message that comes again, with early or late acknowledgement, keeps its unique key.
        """
        will_be_redelivered = will_be_redelivered or (not done and self.delivery.acks_late)
        operations = run_ended(self.delivery.at_present(), done=done, will_be_redelivered=will_be_redelivered)
        self.services.releaser.add(*operations)
