"""Publishes a message with a unique key, which is acquired before, and released if it is not sent.

Where broker and store are one Redis, the request for the key also pushes the message. Where they are two, it
is sent before the message is made, and its answer is read before kombu sends the message. An unusual call
goes the plain way: first the key, then the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import before_task_publish
from kombu import Producer
from kombu.exceptions import OperationalError

from celery_exclusive import outcomes
from celery_exclusive.core.claim import PERIOD, Claim, publish_id
from celery_exclusive.core.operations import (
    AcquireAlone,
    Answer,
    Applied,
    GiveUp,
    Granted,
    KeyOperation,
    Release,
    StandBehind,
)
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.publishing import PHASES, Call, Kind, Sending, publish, unpublished
from celery_exclusive.core.records import NEVER
from celery_exclusive.errors import DuplicateTask, StoreError
from celery_exclusive.messages.header import Header
from celery_exclusive.options.amounts import microseconds
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.asking import AskingPublish
from celery_exclusive.publishing.message import NotSent
from celery_exclusive.publishing.ordered import OrderedPublish
from celery_exclusive.publishing.refusal import existing_result, result_of
from celery_exclusive.run import current_run, enclosing_tasks
from celery_exclusive.seams.kombu_message import are_wrapped, is_in_batch, is_of_pool
from celery_exclusive.system.cached import cached

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured

_GRANTED = Sending(may_hold=True)


class UniquePublish(AskingPublish):
    """A message with a unique key. `ordered`: its option, if it also joins the line when it is published."""

    def __init__(self, message: Message, header: Header, ordered: Exclusive | None) -> None:
        assert header.unique  # noqa: S101 - else there is nothing to do here
        key, self.until = header.unique
        self.option = message.call.unique
        if message.origin.is_retry:
            self.option = message.services.unique(message.task, header.values)
        super().__init__(message, header, key, self.option)
        self.ordered, self.task, self.options = ordered, message.task, message.options
        self.is_simple = not (current_run.get() or message.options.get("retries"))
        """Whether no run publishes the message, so that it inherits no lease and meets no key of its run."""
        self.queued_ttl = self._queued_ttl()
        if not self.is_simple and self.call.inherits:
            self.header = replace(header, follows=publish_id(self.call.inherits.id))
        self.operation = AcquireAlone(self.id, header.id, self.queued_ttl, None, PHASES[self.until])
        """What the plan of a plain call asks. If the answer is a grant, that needs no plan."""
        self.sending: Sending | None = None
        """What becomes of the message, once that is known."""

    def _queued_ttl(self) -> int:
        ttl = self.services.queued_ttl(self.option)
        return ttl if self.until == PERIOD else self.message.queued_ttl(ttl)

    @cached
    def call(self) -> Call:
        key, origin = self.key, self.message.origin
        run = origin.run
        lease = run.unique if run and run.unique and run.unique.claim.key == key else None
        kind: Kind = "call"
        if origin.is_retry:
            kind = "retry"
        elif run:
            kind = "replacement" if lease else "rekeyed replacement"
        return Call(
            Claim(key, self.id, self.header.id, self.services.queued_ttl(self.option)),
            self.until,
            queued_ttl=self.queued_ttl,
            kind=kind,
            inherits=lease.claim if lease and lease.may_hold else None,
            is_awaited=origin.is_awaited,
            has_to_be_sent=origin.has_to_be_sent,
            is_parallel=bool(self.options.get("group_id") or self.options.get("chord")),
            parent=self.header.published_by,
            callers=enclosing_tasks(key),
            lock=self.header.exclusive,
            ends_waits=bool(self.message.call.exclusive and self.message.call.exclusive.ends_waits),
            patience=microseconds(self.services.settings.exclusive_offer) if self.ordered else NEVER,
        )

    def publish(self) -> Any:
        """Send the message with its key, or return the handle of the task that holds the key."""
        is_usual = not (self.ordered or self.may_go_without) and (self.is_simple or self.call.kind == "call")
        if is_usual and self.message.publisher.has_one_call and _may_be_made_before(self.message):
            result = self._send_in_one_call()
        else:
            result = self._send(self._acquire(self.ask))
        if self.ordered and self.message.publisher.has_one_call:
            self.message.publisher.note_ordered(self.task.name, self.key, is_refused=result is None)
        if result is None:
            return self._existing_result()
        result.outcome, result.existing_id, result.key = "published", None, self.key
        return result

    def _send(self, sending: Sending) -> Any:
        """Let Celery send the message as its plan decides. Return its handle. None: it is not sent."""
        if sending.kind in ("skip", "error"):
            return None
        if sending.kind == "sent":
            return result_of(self.services, self.options, self.message.id)
        if self.ordered and sending.kind == "send":
            return OrderedPublish(self.message, self.header, self.ordered).send()
        return self.message.send(self.header)

    def _send_in_one_call(self) -> Any:
        """Let Celery make the message, and acquire the key when kombu would send it."""
        try:
            self.begin(self.operation)
        except StoreError as error:
            return self._send(self._without_key(error))
        try:
            result = self.message.send(self.header, self._acquire_and_send)
        except OperationalError:
            if self.sending or self.is_unanswered:
                raise
            return self._send(self._acquire(self.ask))  # the store says what is wrong with both
        finally:
            if self.begun:
                self.begun.disconnect()
        self.message.publisher.note_call(self.task.name, is_refused=self.is_refused)
        return result

    def _acquire_and_send(self, captured: Captured) -> Any:
        """Send the captured message, or end its publishing. kombu may repeat this."""
        sending = self.sending or self._acquire(partial(self.ask_and_push, captured=captured))
        if sending.kind in ("skip", "error"):
            raise NotSent
        if self.is_pushed or sending.kind == "sent":
            return None
        return self.message.send_captured(captured, self.header)

    def _acquire(self, ask: Callable[[AcquireAlone], Answer]) -> Sending:
        try:
            first = ask(self.operation) if self.is_simple else None
            is_granted = isinstance(first, Granted)
            sending = (
                _GRANTED if is_granted else run_plan(publish(self.call), partial(self._answer, ask, first))
            )
        except StoreError as error:
            return self._without_key(error)
        self.sending, self.may_hold = sending, sending.may_hold
        if not self.is_simple and sending.may_hold:
            self._note_heir(is_handed_over=True)
        if sending.kind == "duplicate":
            awaited = self.message.origin.is_awaited
            self.header = replace(self.header, duplicate_of=sending.existing_id, awaited=awaited)
        return sending

    def _answer(self, ask: Callable[[AcquireAlone], Answer], first: Answer | None, asked: Ask) -> Answer:
        """Return the answer to a request of the plan; `first`: the one to a request that was sent."""
        operation = asked.operation
        if isinstance(operation, StandBehind):
            try:
                answer: Answer = self.store.apply(asked.key, operation).answer
            except StoreError:
                return Applied(False)
            return answer
        assert isinstance(operation, AcquireAlone)  # noqa: S101 - a call asks for nothing else
        return first if first and not operation.inherits else ask(operation)

    def _without_key(self, error: StoreError) -> Sending:
        """Let the message be sent without its key, which its worker acquires if it can, or raise."""
        if not self.goes_without:
            raise error
        outcomes.continues_without_key(Subject(self.task.name, self.message.id, self.key), error)
        self._note_heir(is_handed_over=self.may_hold)
        self.header, self.sending = replace(self.header, unique=None), Sending()
        return self.sending

    def _note_heir(self, *, is_handed_over: bool) -> None:
        """Note whether the message inherits the lease of the run that publishes it, which then has none."""
        run = self.message.origin.run
        if self.call.inherits and run and run.unique:
            run.unique.is_handed_over = is_handed_over

    def _existing_result(self) -> Any:
        """Return the handle of the task that holds the key, for a call that is not sent."""
        assert self.sending  # noqa: S101 - it was refused
        name, key, existing_id = self.task.name, self.key, self.sending.existing_id
        if self.sending.kind == "error":
            outcomes.not_published(name, key, existing_id, fails=True)
            raise DuplicateTask(
                f"task {name} publishes a call with its own unique key {key} inside its body, which would be "
                "skipped each time: use Unique(until='started'), or publish it with unique=None",
                key,
                existing_id,
            )
        return existing_result(self.services, self.task, self.option, self.options, key, existing_id)

    def undoing(self) -> tuple[list[KeyOperation], list[KeyOperation]]:
        """Release the key, or return an inherited one to its run, which may have ended in the background."""
        at_once = unpublished(self.call, self.services.ttl(self.option))
        return self._undoing(at_once), self._undoing(self.call.claim.release("open"))

    def _undoing(self, operation: KeyOperation) -> list[KeyOperation]:
        """Return what undoes a request, also one that may still arrive. A message once sent keeps its key."""
        if not (self.is_unanswered or self.may_be_sent):
            return [operation]
        is_release = isinstance(operation, Release)
        give_up = GiveUp(self.id, releases=is_release)
        return [give_up] if is_release else [give_up, operation]

    def note_undone(self, answer: Answer) -> None:
        self._note_heir(is_handed_over=not isinstance(answer, Granted))


def _may_be_made_before(message: Message) -> bool:
    """Whether a message may be made before its key is acquired: only Celery and kombu see it begun."""
    if before_task_publish.receivers:
        return False  # a receiver, such as a tracer's, waits for after_task_publish
    amqp = message.services.amqp
    # A tracer that wraps one would report our exception as an error. A sender of the user's may publish
    # through a producer of its own.
    if are_wrapped((Celery.send_task, Celery), (Producer.publish, Producer), (amqp.send_task_message, AMQP)):
        return False
    producer, pool = message.options.get("producer"), amqp.producer_pool
    if not producer:
        return getattr(pool, "Producer", None) is Producer
    # A group has a producer of the pool, as its own. The maker of another producer may change it in any way.
    return type(producer) is Producer and is_of_pool(producer, pool) and not is_in_batch(producer)
