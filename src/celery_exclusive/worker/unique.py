"""The unique lease of one delivery on its way through the gate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from celery.exceptions import Reject

from celery_exclusive import notices
from celery_exclusive.core.operations import Answer, Done, Granted, Held, Owner, Renew, Request
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.claim import Claim
from celery_exclusive.leases.lease import finish
from celery_exclusive.messages.header import is_other_copy, publish_claim_id
from celery_exclusive.options.declared import FINISHED, PERIOD, STARTED
from celery_exclusive.system.deadline import deadline
from celery_exclusive.system.signals import undisturbed
from celery_exclusive.worker.delivery import Delivery, UniqueClaim
from celery_exclusive.worker.patience import Patience
from celery_exclusive.worker.state import state_of

if TYPE_CHECKING:
    from celery_exclusive.services import Services


class UniqueExecution:
    """What becomes of a unique lease while its message is taken in, waits, runs and ends.

    While the message is queued it belongs to the message, while a body runs to that delivery: a copy of the
    same message stands behind the run, and is dropped when that is done. The copies of other queues are not
    copies of it: the first that begins has the key, they run without. What has been let in once, as a
    retry or what the broker delivers again, waits in line for a key that another body has.
    """

    def __init__(
        self,
        services: Services,
        delivery: Delivery,
        unique: UniqueClaim,
        *,
        patience: Patience,
        ask: Callable[[str, Request], Answer],
    ) -> None:
        self.services, self.delivery, self.patience = services, delivery, patience
        self.lease, self.claim, self.until = unique, unique.claim, unique.until
        self.ask = ask
        self.may_hold = self.until != PERIOD
        self.is_in = delivery.is_let_in or delivery.may_be_in_line

    def admit(self) -> Held | None:
        """Do what a publisher without this library has not done; Held: it is a duplicate."""
        if self.lease.is_taken or self.is_in:
            return None
        own = self.lease.queued.own(self.lease.queued_ttl, "period" if self.until == PERIOD else "queued")
        answer = self.ask(self.claim.key, own)
        if isinstance(answer, Held) and not answer.by:
            return None  # its own copy, which waits for the key
        if isinstance(answer, Held) and self._is_of_publisher(answer.by[0]):
            answer = self.ask(self.claim.key, replace(own, former=(answer.by[0].id, "")))
        if not isinstance(answer, Held):
            return None
        self.may_hold = False
        return None if self._is_kin(answer.by[0]) else answer

    def wait(self) -> None:
        """The message comes again: its id keeps the key for as long as it may be queued."""
        with suppress(StoreUnavailable):
            self.services.store.apply(self.claim.key, self.lease.release_for_queue())

    def wait_for(self, x: Claim) -> None:
        """The same in the line of this lock.

        Another delivery that seems to run does so only if it has the lock: it has died otherwise.
        """
        if self.until == PERIOD:
            return
        store, key, ttl = self.services.store, self.claim.key, self.lease.queued_ttl
        with suppress(StoreUnavailable):
            kept = [(key, replace(claim, ttl=ttl).renew("again")) for claim in self.lease.claims]
            if any(store.renew(kept)) or not self.is_in:
                return
            runs = x.id in [holder.id for holder in store.inspect(x.key).holders]
            store.renew([(key, Renew(self.claim.id, None, ttl, None if runs else "again"))])

    def start(self) -> Answer:
        """Let the body begin, if this delivery may have the key while it runs.

        Held: another body has it, and this message was never let in. Parked: its turn comes later. Stale:
        another delivery of it has finished.
        """
        if self.until == STARTED:
            self.ask(self.claim.key, self.lease.queued.release(done=False))
            self.may_hold = False
        if self.until != FINISHED:
            return Granted(0)
        answer = self._enter()
        if isinstance(answer, Held) and self._may_take_over(answer.by[0]):
            former = replace(self.claim, id=answer.by[0].id)
            answer = self.ask(self.claim.key, self.claim.own(self.claim.ttl, "running", former))
        if isinstance(answer, Held) and self._goes_without(answer.by[0]):
            self.may_hold = False
            return Granted(0)
        if isinstance(answer, Held) and (self.is_in or self._is_kin(answer.by[0])):
            answer = self._enter(park=True)
        self.may_hold = isinstance(answer, Granted)
        return answer

    def end(self, error: BaseException | None) -> None:
        """The body has ended: nothing that is published from now on finds the key taken by it.

        Unless its message comes again, or its process ends, or copies of it are known of: these are dropped
        when the result is stored, and not before. It raises nothing: finished work stays finished.
        """
        if not self.may_hold or not (error is None or isinstance(error, Exception)):
            return
        if keeper := state_of(self.services).keeper:
            keeper.end(self.delivery, [self.claim])
        is_requeued = isinstance(error, Reject) and getattr(error, "requeue", False)
        with undisturbed():
            if self.delivery.late and (is_requeued or isinstance(error, MemoryError)):
                self.wait()
            else:
                self.release(done=False)

    def release(self, *, done: bool) -> None:
        """Release the key, if this delivery may hold it; what fails is tried again, or owed."""
        if not self.may_hold:
            return
        store, release = self.services.store, self.claim.release(done=done, alone=not done)
        try:
            with deadline(self.patience.rest()):
                reply, _ = finish(lambda: store.apply(self.claim.key, release))
        except Exception as error:  # noqa: BLE001 - the task has its result
            notices.trouble(
                f"unique key {self.claim.key} could not be released; the release is retried", error
            )
        else:
            self.may_hold = not done and reply.answer == Done(False)

    def _enter(self, *, park: bool = False) -> Answer:
        return self.ask(self.claim.key, self.delivery.acquire(self.claim, park=park))

    def _is_of_publisher(self, owner: Owner) -> bool:
        """Whether the publisher of this message has taken the key, and said so in a header not valid here."""
        return owner.phase == "queued" and notices.task_id(owner.id) == notices.task_id(self.claim.id)

    def _may_take_over(self, owner: Owner) -> bool:
        """Whether that one is only queued, and runs later as a duplicate, or comes from this very task.

        If each left the key to the next one, in a queue that is longer than `queued_ttl`, none would run.
        """
        if owner.phase == "queued":
            return not self.delivery.is_fanout or publish_claim_id(self.claim.id) == owner.id
        return owner.phase == "again" and bool(owner.fence) and self._is_kin(owner)

    def _goes_without(self, owner: Owner) -> bool:
        """Whether the key is that of the publish, and another queue's copy has begun first.

        Where all queues get a copy, that one may have ended already, and another publish has the key.
        """
        id = self.claim.id
        return is_other_copy(id, owner.id) or (self.delivery.is_fanout and id != owner.id)

    def _is_kin(self, owner: Owner) -> bool:
        return notices.task_id(owner.id) in self.delivery.kin
