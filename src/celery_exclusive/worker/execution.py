"""One delivery on its way through the gate: into the body, to the skip result, or back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject
from celery.states import IGNORED, REJECTED

from celery_exclusive import notices
from celery_exclusive.core.admission import Outcome, Policy, admit
from celery_exclusive.core.operations import Acquire, Answer, Applied, Held, Renew
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.insist import insist
from celery_exclusive.leases.lease import Lease
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.run import Run, within
from celery_exclusive.services import Services
from celery_exclusive.system.deadline import deadline
from celery_exclusive.system.signals import undisturbed
from celery_exclusive.worker.deliver_again import DeliverAgain
from celery_exclusive.worker.delivery import Received
from celery_exclusive.worker.patience import Patience
from celery_exclusive.worker.report import Report
from celery_exclusive.worker.reschedule import next_try
from celery_exclusive.worker.state import release_later, state_of
from celery_exclusive.worker.unique import UniqueOfRun

_PAUSE = 5
"""Seconds after which a message comes again that has waited for the store in vain; the longest."""
_LOOK = 1
"""Seconds for which the slot of a message that is parked waits for the store."""
_OVER = ("wait", "drop", "reschedule")
"""Outcomes after which nothing is held: the message goes on elsewhere, or is over."""


class Execution:
    """Runs the plan of a delivery on the store, and carries out its outcome."""

    def __init__(
        self,
        task: Any,
        tracer: Callable[..., Any],
        delivery: Received,
        uuid: str,
        args: Any,
        kwargs: Any,
        request: Any,
    ) -> None:
        self.task, self.tracer, self.id = task, tracer, uuid
        self.services: Services = task.app._celery_exclusive
        self.state = state_of(self.services)
        self.call = (uuid, args, kwargs, request)
        self.delivery = delivery.at_present()
        if not self.is_main:  # a child: only its parent sees whether somebody listens
            self.services.events_from = lambda: delivery.events_from
        self.republisher = Republisher(task.app)
        self.run = Run(uuid, body_over=True)  # until it begins: Celery may end it without
        self.unique: UniqueOfRun | None = None
        self.patience = Patience(self.services, task, request)
        self.report = Report(self.services, task, self.delivery, self.call)
        option = self.report.exclusive or self.report.unique
        self.may_go_without = self.services.allows_without(option) and not delivery.may_be_in_line
        self.again: StoredMessage | None = None
        self.asked = 0.0
        if delivery.unique:
            self.unique = UniqueOfRun(self.services, delivery, delivery.unique, self.patience)
            self.run.unique = self.unique

    @property
    def is_main(self) -> bool:
        """Whether bodies run in the main process, which sees their ends itself."""
        heartbeat = self.state.heartbeat
        return heartbeat is not None and not heartbeat.is_for_children

    def go(self) -> Any:
        """Go through the gate: into the body, to the skip result, or back."""
        outcome: Outcome | None = Outcome("run")  # an interruption may come while the lock is acquired
        is_begun = done = False
        try:
            outcome = self.enter()
            if outcome is None:
                return _ends(Reject("the store of the lock does not answer", requeue=True), REJECTED)
            if outcome.kind in _OVER:
                return _ends(self.ending(outcome), IGNORED)
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
                if outcome and (outcome.has_lock or outcome.kind == "run"):
                    self.leave(done=done)
                elif outcome and outcome.kind not in _OVER:
                    self.leave_unique(done=done)

    def enter(self) -> Outcome | None:
        """Acquire the keys, or decide where the message goes instead.

        None: the store stayed down, and the message has to go back to the broker, unless the task may run
        without a lease. It is never dropped: a message that was acknowledged, or that the broker would drop
        when it is redelivered too often, is published again, or waits until broker or store answers.
        """
        while True:
            is_in_outage = False
            try:
                outcome = run_plan(admit(self.delivery, self.policy), self.ask)
                if outcome.kind == "reschedule" and not self.reschedule(outcome):
                    outcome = replace(outcome, kind="fail")
                if outcome.kind != "reschedule":
                    self.prepare(outcome)
                    return outcome
            except StoreUnavailable as error:
                if self.may_go_without:
                    self.run.is_unguarded = True
                    notices.unguarded(self.services, self.task.name, self.id, self.delivery.key, error)
                    return Outcome("run")
                notices.given_back(self.services, self.task.name, self.id, self.delivery.key, error)
                if self.delivery.acks_late and not self.republisher.counts_deliveries:
                    self.owe(done=False, begun=False)
                    return None
                pause = min(self.services.settings.exclusive_store_wait, _PAUSE)
                self.again, is_in_outage = self.delivery.stored.delayed(pause), True
            if self.publish_again():
                if is_in_outage:
                    self.owe(done=False, begun=False)
                return Outcome("reschedule")

    def publish_again(self) -> bool:
        try:
            if self.delivery.is_stored and self.again:
                self.republisher.publish(self.again)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is another try
            notices.trouble(f"task {self.id} could not be published again and keeps waiting", error)
            return False
        return True

    @property
    def policy(self) -> Policy:
        option = self.report.exclusive
        if option is None:
            return Policy(may_go_without=self.may_go_without)
        most = option.max_waiting or self.services.settings.exclusive_max_waiting
        return Policy(option.on_conflict, option.on_full, most, self.may_go_without)

    def ask(self, asked: Ask) -> Answer:
        operation = asked.operation
        if asked.may_fail:
            with suppress(StoreUnavailable), deadline(_LOOK):
                return self.try_to_ask(asked)
            return Applied(False)
        assert operation is not None  # noqa: S101 - a plan looks, and renews, only if that may fail
        assert not isinstance(operation, Renew)  # noqa: S101
        if self.delivery.exclusive and asked.key == self.delivery.exclusive.key:
            self.asked = time.monotonic()
        if isinstance(operation, Acquire) and asked.park:
            self.may_go_without = False  # it may be in line after that, and not know it
            if self.delivery.is_stored:
                operation = replace(operation, message=self.delivery.stored.dump())
        reply, interruption = self.patience.apply(asked.key, operation)
        if isinstance(interruption, Exception):
            self.run.failure = interruption
        elif interruption:
            raise interruption
        return reply.answer

    def try_to_ask(self, asked: Ask) -> Answer:
        store, operation = self.services.store, asked.operation
        if operation is None:
            return Held(store.inspect(asked.key).holders)
        if isinstance(operation, Renew):
            return Applied(any(store.renew([(asked.key, operation)])))
        return store.apply(asked.key, operation).answer

    def reschedule(self, outcome: Outcome) -> bool:
        """Delay the message, whose key is held; False if it has tried for as long as it may."""
        assert self.report.exclusive  # noqa: S101 - a delivery without it competes for no lock
        later = next_try(self.delivery.stored, self.report.exclusive.give_up_after)
        if later:
            self.again, pause = later
            notices.rescheduled(self.task.name, self.id, self.report.lock, outcome.by, pause)
        return later is not None

    def prepare(self, outcome: Outcome) -> None:
        """Prepare the run for its outcome, and log it."""
        exclusive, unique = self.delivery.exclusive, self.unique
        if unique:
            unique.may_hold = outcome.may_hold_unique
        if exclusive and outcome.has_lock:
            known = self.state.keeper.known if self.state.keeper else lambda: None
            until = self.asked + exclusive.ttl / SECOND
            self.run.lease = Lease(outcome.fence, exclusive, self.services.store, until, known)
        if self.state.keeper and (outcome.has_lock or outcome.kind == "run"):
            held = [claim for claim in (exclusive,) if claim and outcome.has_lock]
            if unique and unique.may_hold:
                held.append(unique.claim)
            self.state.keeper.hold(self.delivery, held)
        self.report.note(outcome, self.run)

    def ending(self, outcome: Outcome) -> Ignore:
        if self.again and outcome.kind == "reschedule" and not self.delivery.is_stored:
            again = self.again.signed(self.services.signer)
            return DeliverAgain(again.our_header, again.headers["eta"])
        return Ignore(outcome.kind)

    def leave(self, *, done: bool) -> None:
        """Release the leases. Never raises after successful work."""
        exclusive = self.delivery.exclusive
        if self.run.lease:
            self.run.lease.end()
        if self.state.keeper:
            self.state.keeper.end(self.delivery, self.delivery.leases)
        if self.is_main and self.state.heartbeat:
            self.state.heartbeat.drop(self.delivery)
        interruption = None
        try:
            with deadline(self.patience.rest()):
                if exclusive:
                    release = exclusive.release(done=done)
                    reply, interruption, is_repeated = insist(
                        lambda: self.services.store.apply(exclusive.key, release)
                    )
                    if (
                        self.run.lease
                        and reply.answer == Applied(False)
                        and not (is_repeated or interruption)
                    ):
                        notices.lease_lost(self.services, self.task.name, self.id, exclusive.key)
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
        """Release the unique key that the end of the body could not.

        If the child dies in its body, the main process does, which knows whether the message is redelivered.
        """
        unique = self.unique
        if unique and (done or (self.is_main and not self.delivery.acks_late)):
            unique.release(done=True)
            if unique.may_hold:
                self.owe(done=True)

    def owe(self, *, done: bool, begun: bool = True) -> None:
        """Have the leases released when the store answers again.

        A message that has not begun leaves its unique key queued, as it is.
        """
        delivery = self.delivery if begun else replace(self.delivery, unique=None)
        release_later(self.services, delivery, done=done, returns=not done and delivery.acks_late)


def _ends(exc: Exception, state: str) -> Any:
    """Return what Celery's tracer returns for a task that raised this."""
    try:
        raise exc
    except type(exc):
        info = ExceptionInfo(internal=True)
    return trace_ok_t(info, TraceInfo(state, exc), None, None)


def _comes_again(error: object) -> bool:
    """Whether the broker redelivers: the body asks for it, or is out of memory, which ends the worker."""
    is_requeued = isinstance(error, Reject) and bool(getattr(error, "requeue", False))
    return is_requeued or isinstance(error, MemoryError)
