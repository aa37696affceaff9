"""One delivery on its way through the gate: into the body, to the skip result, or back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject
from celery.states import IGNORED, REJECTED

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import (
    Answer,
    Done,
    Full,
    Granted,
    Held,
    Parked,
    Remove,
    Request,
    Stale,
)
from celery_exclusive.errors import LockHeld, StoreUnavailable
from celery_exclusive.leases.claim import Claim
from celery_exclusive.leases.lease import Lease, insist
from celery_exclusive.messages.header import HEADER, is_other_copy
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.declared import FINISHED, Exclusive, Unique
from celery_exclusive.options.keys import given_preview, preview
from celery_exclusive.run import Run, within
from celery_exclusive.system.deadline import deadline
from celery_exclusive.system.signals import undisturbed
from celery_exclusive.worker import line_warnings
from celery_exclusive.worker.deliver_again import DeliverAgain
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.patience import Patience
from celery_exclusive.worker.reschedule import next_try
from celery_exclusive.worker.state import release_later, state_of
from celery_exclusive.worker.unique import UniqueExecution

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.worker.heartbeat import Heartbeat


_PAUSE = 5
"""Seconds after which a message comes again that has waited for the store in vain; the longest."""


class Execution:
    """One delivery on its way through the gate."""

    def __init__(
        self,
        task: Any,
        tracer: Callable[..., Any],
        delivery: Delivery,
        uuid: str,
        args: Any,
        kwargs: Any,
        request: Any,
    ) -> None:
        self.task, self.tracer = task, tracer
        self.services: Services = task.app._celery_exclusive
        self.state = state_of(self.services)
        self.call = (uuid, args, kwargs, request)
        self.delivery = delivery
        if not self.heartbeat:  # a child: only its parent sees whether somebody listens
            self.services.events_from = lambda: delivery.events_from
        self.republisher = Republisher(self.task.app)
        self.id = uuid
        self.run = Run(uuid, body_over=True)  # until it begins: Celery may end it without
        self.patience = Patience(self.services, self.task, request)
        self.again: StoredMessage | None = None
        self.exclusive: Exclusive | None = self.services.exclusive(task, delivery.values)
        self.sole = self.services.unique(task, delivery.values)
        option = self.exclusive or self.sole
        self.may_go_without = self.services.allows_without(option) and not delivery.may_be_in_line
        self.unique: UniqueExecution | None = None
        if delivery.u:
            self.unique = UniqueExecution(
                self.services,
                delivery,
                delivery.u,
                patience=self.patience,
                ask=self.ask,
            )
        self.run.unique = self.unique

    @property
    def option(self) -> Exclusive:
        assert self.exclusive  # noqa: S101 - a delivery without it competes for no lock
        return self.exclusive

    @property
    def heartbeat(self) -> Heartbeat | None:
        """That which has to be told of a lease; of a child's the main process knows."""
        found = self.state.heartbeat
        return found if found and not found.is_for_children else None

    @property
    def lock(self) -> str:
        """The key with a preview of the arguments: for log lines alone. Errors and events have the key."""
        _, args, kwargs, request = self.call
        option = self.exclusive if self.delivery.x else self.sole
        told = ""
        if option and self.services.settings.exclusive_preview:
            is_masked = self.delivery.stored.headers[HEADER].get("masked")
            told = given_preview(request) if is_masked else preview(self.task.run, option, args, kwargs)
        return f"{self.delivery.key} ({told})" if told else self.delivery.key

    def go(self) -> Any:
        """Go through the gate: into the body, to the skip result, or back."""
        may_hold, is_out, is_begun, done = True, False, False, False
        try:
            answer = self.enter()
            may_hold = isinstance(answer, Granted) or self.run.is_unguarded
            is_out = answer is None or isinstance(answer, (Parked, Stale))
            if answer is None:
                return _ends(Reject("the store of the lock does not answer", requeue=True), REJECTED)
            if isinstance(answer, (Parked, Stale)):
                return _ends(self.ending(answer), IGNORED)
            is_begun = True
            with within(self.run):
                result = self.tracer(*self.call)
            error = result.info and result.info.retval
            done = not _comes_again(error)
            return result
        except Exception as error:  # of a hook, after the result was stored
            done = is_begun and not _comes_again(error)
            raise
        finally:
            with undisturbed():
                if may_hold:
                    self.leave(done=done)
                elif not is_out:
                    self.leave_unique(done=done)

    def enter(self) -> Answer | None:
        """Take the lease, or find out what becomes of this delivery instead.

        None: the store stayed down, and the message has to go back to the broker, unless the task may run
        without a lease. It is never dropped: what has been acknowledged, or may not be given back too often,
        is published again, or waits on for whichever of the two comes back first.
        """
        while True:
            self.again, is_known = None, True
            try:
                answer = self.decide()
                if not self.again:
                    return answer
            except StoreUnavailable as error:
                if self.may_go_without:
                    self.run.is_unguarded = True
                    notices.unguarded(self.services, self.task.name, self.id, self.delivery.key, error)
                    return Held(())
                notices.given_back(self.services, self.task.name, self.id, self.delivery.key, error)
                if self.delivery.late and not self.republisher.counts_deliveries:
                    self.owe(done=False, begun=False)
                    return None
                self.again = self.delivery.stored.delayed(
                    min(self.services.settings.exclusive_store_wait, _PAUSE)
                )
                is_known = False
            try:
                if self.delivery.is_stored:
                    self.republisher.publish(self.again)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is another try
                notices.trouble(f"task {self.id} could not be published again and keeps waiting", error)
            else:
                if not is_known:
                    self.owe(done=False, begun=False)
                return Stale()  # this delivery is over, its copy goes on

    def ending(self, answer: Parked | Stale) -> Ignore:
        if self.again and not self.delivery.is_stored:
            again = self.again.signed(self.services.signer)
            return DeliverAgain(again.headers[HEADER], again.headers["eta"])
        return Ignore(type(answer).__name__.lower())

    def decide(self) -> Answer:
        """Take what the body needs: the lock first, and only then that which says that it runs."""
        unique = self.unique
        if self.delivery.dup:
            return self.duplicate(*self.delivery.dup)
        if unique and (held := unique.admit()):
            return self.duplicate(unique.claim.key, notices.task_id(held.by[0].id))
        answer = self.lock_up(self.delivery.x) if self.delivery.x else Granted(0)
        if unique and isinstance(answer, Granted):
            answer = self.begin(unique, answer)
        elif unique and self.delivery.x and (isinstance(answer, Parked) or self.again):
            unique.wait_for(self.delivery.x)
        if isinstance(answer, Granted) and self.state.keeper:
            self.state.keeper.hold(self.delivery, self.held)
        return answer

    def begin(self, unique: UniqueExecution, granted: Granted) -> Answer:
        """Take the unique key, too; who has to wait for that keeps no lock meanwhile."""
        answer, x = unique.start(), self.delivery.x
        if isinstance(answer, Granted):
            return granted
        if isinstance(answer, Held):
            self.duplicate(unique.claim.key, notices.task_id(answer.by[0].id))
            return granted
        if isinstance(answer, Parked):
            notices.parked(self.task.name, self.id, unique.claim.key, answer.position, answer.by)
        else:
            notices.stale(self.task.name, self.id, unique.claim.key)
        if x:
            self.run.lease = None
            self.ask(x.key, Remove(x.id, done=False))
            self.ask(x.key, x.release(done=False))
        return answer

    @property
    def held(self) -> list[Claim]:
        """The leases that this delivery was granted."""
        x, unique = self.delivery.x, self.unique
        held = [x] if x and self.run.lease else []
        if unique and unique.until == FINISHED and unique.may_hold:
            held.append(unique.claim)
        return held

    def duplicate(self, key: str, existing_id: str) -> Held:
        """It was sent though another one has its unique key: it ends without its body."""
        option = self.sole or Unique()
        self.run.skipped = (option.skipped(key, existing_id),)
        notices.duplicate(self.task.name, self.id, key, existing_id)
        return Held(())

    def lock_up(self, x: Claim) -> Answer:
        option = self.option
        asked = time.monotonic()
        waits, most = option.on_conflict == "wait", self.max_waiting
        answer = self.acquire(x, park=waits and not self.may_go_without, max_waiting=most)
        if isinstance(answer, Held) and waits:
            answer = self.acquire(x, park=True, max_waiting=most)
        if isinstance(answer, (Held, Full)) and (self.is_kin(answer) or self.goes_on):
            answer = self.acquire(x, park=True)
        name = self.task.name
        if isinstance(answer, Granted):
            ttl = x.ttl / SECOND
            store, keeper = self.services.store, self.state.keeper
            self.run.lease = Lease(
                x.key,
                answer.fence,
                ttl,
                store,
                x.id,
                x.token,
                x.limit,
                asked + ttl,
                keeper.known if keeper else lambda: None,
            )
        elif isinstance(answer, Parked):
            notices.parked(name, self.id, self.lock, answer.position, answer.by)
            line_warnings.look(name, x.key, answer.position)
        elif isinstance(answer, Held):
            self.meet(answer)
        elif isinstance(answer, Full) and option.on_full == "skip":
            self.run.skipped = self.skipped(answer)
            notices.full(name, self.id, self.lock, answer.waiting, answer.by)
        elif isinstance(answer, Full):
            self.run.failure = self.refused(
                f"cannot wait in the line of lock {self.delivery.key}: {answer.waiting} waiting already, as "
                f"many as max_waiting allows; the lock is {notices.held(answer.by)}. Publish it again later, "
                "or use on_full='skip'",
                answer,
            )
        elif isinstance(answer, Stale):
            notices.stale(name, self.id, self.lock)
        return answer

    def meet(self, held: Held) -> None:
        """Do what the option says of a key that is taken, for those that do not wait in line, or cannot."""
        option, name = self.option, self.task.name
        waits = option.on_conflict == "wait" or self.goes_on or self.is_kin(held)
        if option.on_conflict == "skip" and not waits:
            self.run.skipped = self.skipped(held)
            notices.skipped(name, self.id, self.lock, held.by)
            return
        found = f"found lock {self.delivery.key} {notices.held(held.by)}"
        if option.on_conflict == "raise" and not waits:
            self.run.failure = self.refused(
                f"{found}. Publish it again later, or use on_conflict='wait' or 'skip'", held
            )
        elif later := next_try(self.delivery.stored, option.give_up_after):
            self.again, pause = later
            notices.rescheduled(name, self.id, self.lock, held.by, pause)
        else:
            late = f"and gave up after {option.give_up_after:g} s (give_up_after). Publish it again later"
            self.run.failure = self.refused(f"{found}, {late}", held)

    @property
    def max_waiting(self) -> int | None:
        """How many may be in line before this task. What has been let in once is not sent away."""
        if self.option.on_conflict != "wait" or self.delivery.is_let_in:
            return None
        return self.option.max_waiting or self.services.settings.exclusive_max_waiting

    def skipped(self, answer: Held | Full) -> tuple[object]:
        return (self.option.skipped(self.delivery.key, notices.task_id(answer.by[0].id)),)

    def refused(self, why: str, answer: Held | Full) -> LockHeld:
        holder = notices.task_id(answer.by[0].id)
        return LockHeld(f"task {self.task.name} {why}", self.delivery.key, holder)

    def is_kin(self, held: Held | Full) -> bool:
        """Whether the place is held by an earlier run of ourselves, or by the parent that is just ending."""
        return any(
            notices.task_id(owner.id) in self.delivery.kin and not is_other_copy(owner.id, self.delivery.id)
            for owner in held.by
        )

    @property
    def goes_on(self) -> bool:
        """Whether it was let in before, and so waits for another run, whatever a newcomer would do."""
        return self.delivery.is_let_in and self.option.on_conflict in ("skip", "raise")

    def acquire(self, x: Claim, *, park: bool, max_waiting: int | None = None) -> Answer:
        """Acquire or park, in one call of the store, and publish what that wakes."""
        self.may_go_without &= not park  # it may be in line after that, and not know it
        return self.ask(x.key, self.delivery.acquire(x, park=park, max_waiting=max_waiting))

    def ask(self, key: str, operation: Request) -> Answer:
        reply, interruption = self.patience.apply(key, operation)
        if isinstance(interruption, Exception):
            self.run.failure = interruption
        elif interruption:
            raise interruption
        return reply.answer

    def leave(self, *, done: bool) -> None:
        """Give the leases back and wake whoever is next. Never raises after successful work."""
        x = self.delivery.x
        if self.run.lease:
            self.run.lease.end()
        if self.state.keeper:
            self.state.keeper.end(self.delivery, self.delivery.leases)
        if self.heartbeat:
            self.heartbeat.drop(self.delivery)
        interruption = None
        try:
            with deadline(self.patience.rest()):
                if x:
                    release = x.release(done=done)
                    reply, interruption, is_repeated = insist(
                        lambda: self.services.store.apply(x.key, release)
                    )
                    if self.run.lease and reply.answer == Done(False) and not (is_repeated or interruption):
                        notices.lease_lost(self.services, self.task.name, self.id, x.key)
        except Exception as error:  # noqa: BLE001 - the task has its result
            notices.trouble(
                f"task {self.id} could not release lock {self.delivery.key}; the release is retried", error
            )
            self.owe(done=done)
            return
        self.leave_unique(done=done)
        if interruption and not isinstance(interruption, Exception):
            raise interruption

    def leave_unique(self, *, done: bool) -> None:
        """Give back the unique key that the end of the body could not.

        In a child that ends instead of its body the main process does, and knows whether the message returns.
        """
        if self.unique and (done or (self.heartbeat and not self.delivery.late)):
            self.unique.release(done=True)
            if self.unique.may_hold:
                self.owe(done=True)

    def owe(self, *, done: bool, begun: bool = True) -> None:
        """Have it given back when the store answers again, what there may be to give back.

        What has not begun leaves its unique key queued, as it is.
        """
        delivery = self.delivery if begun else replace(self.delivery, u=None)
        release_later(self.services, delivery, done=done, returns=not done and delivery.late)


def _ends(exc: Exception, state: str) -> Any:
    """What Celery's tracer returns for a task that raised this."""
    try:
        raise exc
    except type(exc):
        info = ExceptionInfo(internal=True)
    return trace_ok_t(info, TraceInfo(state, exc), None, None)


def _comes_again(error: object) -> bool:
    """Whether the message is given back: the body asks for it, or is out of memory, which ends the worker."""
    is_requeued = isinstance(error, Reject) and bool(getattr(error, "requeue", False))
    return is_requeued or isinstance(error, MemoryError)
