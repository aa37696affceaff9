"""The execution of one delivery: it acquires the keys, runs the tracer or ends without it, and releases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.states import IGNORED, REJECTED

from celery_exclusive import display, notices, outcomes
from celery_exclusive.brokers import counts_deliveries
from celery_exclusive.core.admission import Admission, Policy, admit, joinable
from celery_exclusive.core.claim import LAST_CHANCE, task_id, worker_number
from celery_exclusive.core.operations import Acquire, Answer, Applied, Granted, Held, KeyOperation
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.errors import StoreError, StoreRefused, StoreUnavailable
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.declared import Debounce
from celery_exclusive.options.preview import given_preview, preview
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.long_lines import warn_of_long_line
from celery_exclusive.publishing.refusal import is_beats
from celery_exclusive.run import unread_result, within
from celery_exclusive.seams.celery_request import Ending, trace_ok
from celery_exclusive.signals import lock_outcome
from celery_exclusive.system.deadline import Budget, deadline
from celery_exclusive.system.signals import without_soft_limit
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.joining import LOST, Ended, result_of
from celery_exclusive.worker.reading import Received
from celery_exclusive.worker.reschedule import DeliverAgain, next_try
from celery_exclusive.worker.roster import Slot
from celery_exclusive.worker.run_leases import LeasedRun

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5
"""Seconds between two tries while the store is down: each pause is twice as long as the one before it."""
_STOPS = 0.3
"""Seconds between two checks whether the worker stops."""
_LAST = 3
"""Seconds for which a run still waits for the store when its worker stops."""
_SHORTEST = 0.1
"""The least seconds for a store call, even if no time is left."""
_DELAY = 5
"""The longest delay, in seconds, of a message that has waited for the store in vain and comes again."""
_LOOK = 1
"""Seconds for which the requests of a plan that may fail wait for the store, all together."""


class Execution(LeasedRun):
    """Runs the plan of a delivery on the store, and carries out its outcome.

    While the store is down, the run waits in its worker slot. A hard time limit must not strike at its end:
    finished work would be reported as failed, or run again.

    `call`: task id, args, kwargs and Celery's request. `is_unanswered`: a request for a key has no answer.
    """

    def __init__(
        self,
        task: Any,
        tracer: Callable[..., Any],
        delivery: Received,
        call: tuple[str, Any, Any, Any],
        worker: WorkerContext,
        slot: Slot,
    ) -> None:
        self.tracer, self.call, self.began = tracer, call, time.monotonic()
        hard, soft = call[3].get("timelimit") or (None, None)
        longest, longest_soft = worker.roster.time_limits
        hard, soft = hard or task.time_limit or longest, soft or task.soft_time_limit or longest_soft
        self.time_limits: tuple[float, ...] = tuple(filter(None, (hard, soft)))
        end = Budget(limit_at=self.began + hard if hard else None)
        super().__init__(task, delivery, worker, slot, call[0], end)
        self.may_be_in_line = delivery.may_be_in_line
        self.asked_at = self.look_until = 0.0
        self.was_granted = self.is_ignored = self.has_waited = self.is_unanswered = False
        self.failures = 0

    def execute(self) -> Any:
        entered: Admission | Ignore | Reject | None = None
        done = False
        try:
            entered = self.enter()
            if isinstance(entered, (Ignore, Reject)):
                return _traced(entered)
            if self.is_ignored:
                done = True
                return _traced(Ignore(entered.kind))
            with within(self):
                result = self.tracer(*self.call)
            done = not self.delivery.is_redelivered_for(result.info and result.info.retval)
            return result
        except Exception as error:  # of a hook, after the result was stored
            done = entered is not None and not self.delivery.is_redelivered_for(error)
            raise
        finally:
            try:
                if not isinstance(entered, (Ignore, Reject)):
                    with without_soft_limit():
                        self.release(entered, done=done)
            finally:
                if self.pending_outcomes:
                    self.tell()
                # A timer or task that the body has left has a copy of its context, and in it this run.
                del self.call, self.tracer, self.delivery, self.slot

    def enter(self) -> Admission | Ignore | Reject:
        """Acquire the keys; return the outcome of the run, or the exception that ends the delivery.

        A message is never dropped because the store stays down. If it was acknowledged, or if the broker
        would drop it after too many redeliveries, it is published again, or waits here until broker or store
        answers. Then it acquires all keys anew: leases from before may have expired.
        """
        if joined := self.end_with_other():
            return joined
        while True:
            self.look_until, failures_before = 0.0, self.failures
            if self.was_granted:  # for all that the store knows, it may have begun
                self.delivery = replace(self.delivery, redelivered=True)
            try:
                outcome = run_plan(admit(self.delivery, self.policy), self.ask)
            except StoreUnavailable as error:
                self.heed(error.interruption)
                entered = self.enter_without_store(error)
            except StoreRefused as error:
                self.heed(error.interruption)
                self.failure = self.failure or error  # no other try would change it
                entered = Admission("run" if self.was_granted else "fail")
            else:
                # It acquires its keys one after the other: the store may have been away in between.
                may_have_expired = outcome.kind == "run" and self.failures > failures_before
                entered = None if may_have_expired else self.carry_out(outcome)
            if entered:
                return entered

    @property
    def worker_name(self) -> str:
        """The name of this worker, with the number by which its restarts differ."""
        return f"{self.call[3].get('hostname')} (number {worker_number(self.delivery.token)})"

    @property
    def policy(self) -> Policy:
        option, unique = self.delivery.exclusive_option, self.delivery.unique_option
        headers = self.delivery.content[3]
        refuses = unique is not None and not unique.may_skip and not is_beats(headers)
        on_duplicate = "raise" if refuses else "skip"
        if option is None:
            return Policy(on_duplicate=on_duplicate)
        most, gives_up_in = self.services.max_waiting(option), option.gives_up_in
        return Policy(option.on_conflict, option.on_full, most, gives_up_in, option.on_give_up, on_duplicate)

    def ask(self, asked: Ask) -> Answer:
        operation = asked.operation
        if operation is None or asked.may_fail:
            return self.look(asked)
        if isinstance(operation, Acquire):
            lock = self.delivery.exclusive
            if lock is None or asked.key == lock.key:  # it is for the lease that the body sees
                self.asked_at = time.monotonic()
            if asked.joins is not None:
                self.delivery = self.delivery.as_duplicate_of(asked.key, asked.joins)
            if asked.park:
                self.may_be_in_line = True  # after that, and it may not know it
                operation = replace(operation, message=self.delivery.parked_at(asked.key).dump())
            elif operation.recovers:
                stored = self.delivery.stored.begun(ran_on=self.worker_name)
                operation = replace(operation, message=stored.dump())
        answer = self.apply(asked.key, operation)
        self.was_granted |= isinstance(answer, Granted)
        return answer

    def apply(self, key: str, operation: KeyOperation) -> Answer:
        """Return the store's answer, also if it comes only after a while."""
        seconds, began, pause = self.seconds_to_begin, time.monotonic(), _FIRST_PAUSE
        attempts = Attempts()

        def is_over(pause: float = 0) -> bool:
            longest = min(seconds, _LAST) if self.is_hurried else seconds
            return time.monotonic() + pause > began + longest

        with deadline(seconds):
            while True:
                try:
                    answer = attempts.make(partial(self.try_once, key, operation))
                except StoreUnavailable as error:
                    self.failures += 1
                    if is_over(pause):
                        raise
                    if pause == _FIRST_PAUSE:
                        outcomes.store_wait(Subject(self.task.name, self.task_id, key), error)
                    try:
                        _sleep(pause * random.uniform(0.5, 1.5), unless=is_over)
                    except SoftTimeLimitExceeded as limit:
                        error.interruption = limit
                        raise error  # noqa: B904 - its cause is the driver's error
                    if is_over():
                        raise
                else:
                    self.heed(attempts.interruption)
                    return answer
                pause = min(pause * 2, _LONGEST_PAUSE)

    def try_once(self, key: str, operation: KeyOperation) -> Answer:
        """Send a request, after a failure as a redelivered copy's.

        The store may have executed a request without an answer, and an earlier one may arrive last.
        """
        was_unanswered = self.is_unanswered
        if isinstance(operation, Acquire):
            if was_unanswered:
                operation = replace(operation, redelivered=True)
            self.is_unanswered = True  # until the answer is here
        answer: Answer = self.services.store.apply(key, operation).answer
        self.is_unanswered = was_unanswered
        return answer

    @property
    def seconds_to_begin(self) -> float:
        """The seconds to wait. Time limits run meanwhile, and must not end a task before it begins."""
        seconds = float(self.services.settings.exclusive_store_wait)
        for limit in self.time_limits:
            left = limit / 2 - (time.monotonic() - self.began)
            seconds = min(seconds, max(left, _SHORTEST))
        if self.worker.roster.is_stopping and self.delivery.can_be_parked:  # others may be queued behind it
            seconds = min(seconds, _LAST)
        return seconds

    @property
    def is_hurried(self) -> bool:
        """Whether the worker stops and another one can execute the delivery."""
        return self.worker.is_stopping and self.delivery.can_be_parked

    def look(self, asked: Ask) -> Answer:
        """Send a request that the plan can do without, with a short time limit."""
        self.look_until = self.look_until or time.monotonic() + _LOOK
        store, operation, attempts = self.services.store, asked.operation, Attempts()
        answer: Answer = Applied(False)
        with suppress(StoreError), deadline(self.look_until - time.monotonic()):
            if operation is None:
                answer = attempts.make(partial(store.inspect, asked.key)).as_answer
            else:
                answer = attempts.make(partial(store.apply, asked.key, operation)).answer
        self.heed(attempts.interruption)
        return answer

    def heed(self, interruption: BaseException | None) -> None:
        """Note the exception of a signal handler during a store call: the body gets it at once."""
        if isinstance(interruption, Exception):
            self.failure = interruption
        elif interruption:
            raise interruption

    def enter_without_store(self, error: StoreUnavailable) -> Admission | Ignore | Reject | None:
        """Run without a lease, if the option allows that, or else end the delivery. None: try again.

        A stopping worker has not waited as long for the store as the option requires: it ends the delivery.
        """
        delivery, may_run = self.delivery, not (self.may_be_in_line or self.is_hurried)
        may_run = may_run and delivery.duplicate_of is None
        option = delivery.exclusive_option if delivery.exclusive else delivery.unique_option
        if may_run and self.services.allows_without(option):
            self.runs_without_lease = True
            outcomes.runs_without_lease(self.services, self.subject(), error)
            return Admission("run")
        end: Ignore | Reject | None
        if delivery.acks_late and not counts_deliveries(self.task.app.conf):
            end = Reject("the store of the lock does not answer", requeue=True)
        else:
            pause = min(self.services.settings.exclusive_store_wait, _DELAY)
            end = self.publish_again(delivery.stored.delayed(pause), pause)
        if end:
            outcomes.message_requeued(self.services, self.subject(), error)
            self.release_later(done=False, redelivered=True)
        return end

    def carry_out(self, outcome: Admission) -> Admission | Ignore | None:
        """Prepare the run for its outcome, or end the delivery. None: try again, as it was not published."""
        if outcome.kind == "reschedule":
            if later := self.next_try(outcome):
                return self.reschedule(outcome, *later)
            outcome = outcome.given_up(self.policy.on_give_up)
        if outcome.kind == "join":
            return self.join(outcome)
        self.note_granted(outcome, self.asked_at)
        if outcome.kind == "run":
            if self.delivery.deaths:
                self.look_at_deaths()
            if lock_outcome.receivers and not self.failure and self.body_lease:
                self.is_told = True
                outcomes.acquired(self.subject(), self.delivery.waited_s)
            return outcome
        is_against = outcome.kind in ("skip", "fail") and outcome.is_against(self.task_id)
        if is_against and not self.services.has_rpc_results:  # it must not replace the result of its owner
            if self.delivery.is_awaited:  # a member of a canvas gets a result, for its next steps
                self.call[3]["ignore_result"] = True
            else:
                self.is_ignored, outcome = True, replace(outcome, kind="skip")
        if outcome.kind not in ("wait", "drop"):
            return self.end_without_body(outcome)
        self.report(outcome)
        return Ignore(outcome.kind)

    def report(self, outcome: Admission) -> None:
        """Log the outcome of a delivery whose body does not run, and note it for receivers."""
        subject, option = self.shown(outcome.key), self.delivery.lock_option(outcome.key)
        if outcome.kind == "wait":
            in_parts = option is not None and option.per is not None
            outcomes.parked(subject, outcome.position, outcome.by, outcome.others, in_parts=in_parts)
            if option:
                warn_of_long_line(self.task.name, outcome.key, outcome.position)
        elif outcome.kind == "drop":
            outcomes.stale(subject)
        else:
            seconds = option.longest_wait if option else None
            outcomes.ended_without_body(subject, outcome, seconds, self.delivery.waited_s)

    def shown(self, key: str) -> Subject:
        """Return the subject whose log lines show a preview of the arguments beside the key."""
        _, args, kwargs, request = self.call
        subject, option, shown = self.subject(key), self.delivery.lock_option(key), ""
        if key == LAST_CHANCE:
            shown = display.deaths(self.delivery.deaths)
        elif option and self.services.settings.exclusive_preview:
            is_masked = self.delivery.header.masked
            shown = given_preview(request) if is_masked else preview(self.task.run, option, args, kwargs)
        return replace(subject, shown=f"{key} ({shown})") if shown else subject

    def end_without_body(self, outcome: Admission) -> Admission:
        outcome, delivery = self.not_handed_on(outcome), self.delivery
        self.report(outcome)
        self.replace_body(self.task.name, outcome, delivery.exclusive_option, delivery.unique_option)
        return outcome

    def end_superseded(self) -> bool:
        """End the run, whose body has stopped for a newer call, as superseded. False: that is gone."""
        lease = self.lease
        if lease is None:
            return False
        with without_soft_limit():
            newer = lease.newer_call(every=0)
        if newer is None:
            return False
        self.end_without_body(Admission("skip", lease.key, existing_id=newer, reason="superseded"))
        return True

    def next_try(self, outcome: Admission) -> tuple[StoredMessage, float] | None:
        """Return the message and its delay, in seconds, of the next try. None: the task gives up."""
        option = self.delivery.lock_option(outcome.key)  # for its unique key it waits without end
        gives_up = option and not self.delivery.may_have_begun
        opens_in = outcome.by[0].opens_in if outcome.by else None
        return next_try(self.delivery.stored, option.longest_wait if option and gives_up else None, opens_in)

    def reschedule(self, outcome: Admission, again: StoredMessage, pause: float) -> Ignore | None:
        if end := self.publish_again(again, pause):
            outcomes.rescheduled(
                self.shown(outcome.key), outcome.by, outcome.others, pause, self.delivery.waited_s
            )
        return end

    def not_handed_on(self, outcome: Admission) -> Admission:
        """Return the outcome, but not a skip whose default result the next step would get.

        One against a task with its own id is handed on: no result of it is stored, so its chain would hang.
        """
        option = self.delivery.lock_option(outcome.key) or self.delivery.unique_option
        is_chosen = option is None or isinstance(option, Debounce) or not option.hands_on_a_skip
        may_skip = is_chosen or not self.delivery.has_next_step or outcome.is_against(self.task_id)
        return outcome if may_skip or outcome.kind != "skip" else replace(outcome, kind="fail")

    def end_with_other(self) -> Admission | None:
        """End a duplicate whose task has ended: it needs no key. None: that runs, or was lost.

        One that may be in line asks for the key: only one copy of its message may end it.
        """
        delivery = self.delivery
        if delivery.may_be_in_line or not (delivery.joins and delivery.duplicate_of):
            return None
        key, existing_id = delivery.duplicate_of
        if not joinable(existing_id, delivery.called_by):
            return None
        seen = self.look(Ask(key, None))
        if isinstance(seen, Held):
            self.has_waited = existing_id not in [task_id(owner.id) for owner in seen.by]
        ended = result_of(self.services, existing_id, waits=self.has_waited)
        return self.end_as(existing_id, ended, key) if ended and ended != LOST else None

    def end_as(self, existing_id: str, ended: Ended, key: str) -> Admission:
        outcomes.joined(self.subject(), existing_id)
        self.skipped, self.failure = ended
        return Admission("run", key)

    def join(self, outcome: Admission) -> Admission | None:
        """End as the task has ended that held the unique key. None: it was lost, and the body runs.

        The one of which this is a duplicate may have ended before this was in line, and after the first look.
        """
        self.note_granted(replace(outcome, kind="run"), self.asked_at)
        other, (_, existing_id) = outcome.existing_id, self.delivery.duplicate_of or ("", "")
        ended = result_of(self.services, other) if other else LOST
        if ended == LOST and existing_id not in ("", other):
            waits = not (self.delivery.may_be_in_line or self.has_waited)
            other, ended = existing_id, result_of(self.services, existing_id, waits=waits) or LOST
        if ended == LOST:
            self.delivery = self.delivery.as_holder()
            return None
        self.end_as(other, ended or (None, unread_result(self.task.name, outcome)), outcome.key)
        return replace(outcome, kind="run")

    def look_at_deaths(self) -> None:
        """Log the dead runs before this one, and fail it without its body if there were too many."""
        most, deaths = self.services.settings.exclusive_max_deaths, self.delivery.deaths
        outcomes.recovered(self.subject(), deaths, self.delivery.header.ran_on or "")
        if most and deaths >= most:
            self.failure = WorkerLostError(
                f"task {self.task.name} was started {deaths} times, and each time its worker died before the "
                f"end: exclusive_max_deaths={most} gives it up"
            )
            outcomes.gave_up(self.services, self.subject(), deaths)

    def publish_again(self, again: StoredMessage, pause: float) -> Ignore | None:
        """Publish the delayed message, or have it delivered again. None: the broker did not accept it."""
        if not self.delivery.can_be_parked:
            again = again.signed(self.services.signer)
            return DeliverAgain(again.our_header, again.headers["eta"])
        try:
            Republisher(self.task.app).publish(again, delay=pause if self.delivery.is_delayed else 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is another try
            notices.trouble(f"task {self.task_id} could not be published again and keeps waiting", error)
            return None
        return Ignore("reschedule")


def _sleep(seconds: float, unless: Callable[[], bool]) -> None:
    """Sleep for so many seconds, but end when the caller has no more time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not unless():
        time.sleep(min(left, _STOPS))


def _traced(end: Ignore | Reject) -> Any:
    try:
        raise end
    except type(end):
        info = ExceptionInfo(internal=True)
    return trace_ok(info, Ending(REJECTED if isinstance(end, Reject) else IGNORED, end), None, None)
