"""Publishes a message with a unique key, which is acquired before, and released if the message is not sent.

Where possible, Celery makes the message meanwhile, and the key is acquired when kombu would send the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from celery_exclusive import notices
from celery_exclusive.core.claim import Claim, publish_id
from celery_exclusive.core.operations import (
    AcquireAlone,
    Answer,
    GiveUp,
    Granted,
    Held,
    KeyOperation,
    Release,
)
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.publishing import Call, Kind, Sending, phase_of, publish, unpublished
from celery_exclusive.errors import (
    DuplicateTask,
    NotDone,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    is_away,
)
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.messages.header import Header
from celery_exclusive.publishing.celery_beat import is_celery_beat
from celery_exclusive.publishing.impatient_store import store_or_impatient
from celery_exclusive.publishing.message import NotSent
from celery_exclusive.publishing.one_call import Request, is_possible
from celery_exclusive.publishing.ordered import OrderedPublish
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.publishing.queued_ttl import queued_ttl
from celery_exclusive.publishing.unanswered import may_be_sent
from celery_exclusive.run import current_run, enclosing_tasks

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured

_GRANTED = Sending(may_hold=True)


class UniquePublish:
    """A message of a task with a unique key, about to be sent.

    result = UniquePublish(message, header, ordered).send()

    `ordered`: its option, if the message joins the line when it is published.
    """

    def __init__(self, message: Message, header: Header, ordered: Exclusive | None) -> None:
        assert header.unique  # noqa: S101 - else there is nothing to do here
        self.message, self.header, self.ordered = message, header, ordered
        self.services, self.task, self.options = message.services, message.task, message.options
        self.origin = origin = Origin.of(message)
        self.key, self.until = header.unique
        self.id = header.claim_id(message.id)
        self.is_simple = not (current_run.get() or message.options.get("retries"))
        """Whether no run publishes the message, so that it inherits no lease and meets no key of its run."""
        services, option = message.services, message.call.unique
        self.option = services.unique(self.task, header.values) if origin.is_retry else option
        self.may_go_without = services.allows_without(self.option)
        self.goes_without = self.may_go_without or origin.is_celerys
        self.queued_ttl = queued_ttl(services, self.option, self.until, message.options)
        if not self.is_simple and self.call.inherits:
            self.header = replace(header, follows=publish_id(self.call.inherits.id))
        acquired_in = phase_of(self.until, "call")
        self.operation = AcquireAlone(self.id, self.header.id, self.queued_ttl, None, acquired_in)
        """What the plan of a plain call asks. If the answer is a grant, that needs no plan."""
        self.sending: Sending | None = None
        """What becomes of the message, once that is known."""

    @cached_property
    def call(self) -> Call:
        """The facts of this call for its plan."""
        key, run = self.key, self.origin.run
        lease = run.unique if run and run.unique and run.unique.claim.key == key else None
        kind: Kind = "call"
        if self.origin.is_retry:
            kind = "retry"
        elif run:
            kind = "replacement" if lease else "rekeyed replacement"
        return Call(
            Claim(key, self.id, self.header.id, self.services.queued_ttl(self.option)),
            self.until,
            queued_ttl=self.queued_ttl,
            kind=kind,
            inherits=lease.claim if lease and lease.may_hold else None,
            is_awaited=self.origin.is_awaited,
            has_to_be_sent=self.origin.has_to_be_sent,
            is_parallel=bool(self.options.get("group_id") or self.options.get("chord")),
            parent=self.header.published_by,
            callers=enclosing_tasks(key),
        )

    def send(self) -> Any:
        """Send the message with its key, or return the handle of the task that holds the key.

        If sending fails or is interrupted, the key is left as it was.

        Raises:
            DuplicateTask: another task holds the key, and the option says "raise".
            StoreUnavailable: the store does not answer, and the message may not go without its key. If the
                error has a `task_id`, the message may have been sent.
        """
        # A wrong setting is an error here, and leaves nothing to undo.
        publisher = self.message.publisher
        self.store = store_or_impatient(publisher) if self.goes_without else self.services.store
        is_celerys = self.origin.is_celerys
        request = Request(self.message, self.header, self.store, self.key, may_be_patient=is_celerys)
        self.request = request
        is_usual = not (self.ordered or self.may_go_without) and (self.is_simple or self.call.kind == "call")
        try:
            if is_usual and publisher.has_one_call and is_possible(self.message):
                result = self._send_in_one_call()
            else:
                result = self._send(self._acquire(request.ask))
        except BaseException as error:
            if request.may_hold and is_away(error):
                self._owe()
            elif request.may_hold:
                self._release()
            if request.may_be_sent and isinstance(error, StoreUnavailable):
                raise may_be_sent(self.task.name, self.message.id, error) from error
            raise
        if result is None:
            return self._existing_result()
        result.outcome, result.existing_id, result.key = "published", None, self.key
        return result

    def _send(self, sending: Sending) -> Any:
        """Let Celery send the message as its plan decides. Return its handle. None: it is not sent."""
        if sending.kind in ("skip", "error"):
            return None
        if sending.kind == "sent":
            return self._result_of(self.message.id)
        if self.ordered and sending.kind == "send":
            return OrderedPublish(self.message, self.ordered, self.header).send()
        return self.message.send(self.header)

    def _send_in_one_call(self) -> Any:
        """Let Celery make the message, and acquire the key when kombu would send it."""
        request, refused_lately = self.request, self.message.publisher.refused_lately
        try:
            holders = self.task.name in refused_lately and self.store.inspect(self.key).holders
            if holders:  # this costs less than a message that is made and not sent
                return self._send(self._acquire(lambda _: Held(holders)))
            request.begin(self.operation)
        except StoreError as error:
            return self._send(self._without_key(error))
        try:
            result = self.message.send(self.header, partial(self._acquire_and_send, made=self.header))
        except OperationalError:
            if self.sending or request.is_unanswered:
                raise
            return self._send(self._acquire(request.ask))  # the store says what is wrong with both
        finally:
            if request.is_unanswered:
                request.close()
        (refused_lately.add if request.is_refused else refused_lately.discard)(self.task.name)
        return result

    def _acquire_and_send(self, captured: Captured, made: Header) -> Any:
        """Send the captured message with this header, or end its publishing. kombu may repeat this."""
        sending = self.sending or self._acquire(partial(self.request.ask_and_push, captured=captured))
        if sending.kind in ("skip", "error"):
            raise NotSent
        if self.request.is_pushed or sending.kind == "sent":
            return None
        return self.message.send_captured(captured, None if self.header is made else self.header)

    def _acquire(self, ask: Callable[[AcquireAlone], Answer]) -> Sending:
        """Acquire the key, and return the decision about the message."""
        try:
            if self.is_simple:
                answer = ask(self.operation)
                is_granted = isinstance(answer, Granted)
                sending = _GRANTED if is_granted else run_plan(publish(self.call), lambda _: answer)
            else:
                sending = run_plan(publish(self.call), lambda asked: ask(_acquisition(asked)))
        except StoreError as error:
            return self._without_key(error)
        self.sending, self.request.may_hold = sending, sending.may_hold
        if not self.is_simple and sending.may_hold:
            self._note_heir(is_handed_over=True)
        if sending.kind == "duplicate":
            self.header = replace(self.header, duplicate_of=sending.existing_id)
        return sending

    def _without_key(self, error: StoreError) -> Sending:
        """Let the message be sent without its key, which its worker acquires if it can, or raise."""
        request = self.request
        if isinstance(error, (NotDone, StoreRefused)) and request.is_unanswered and not request.may_be_sent:
            request.may_hold = False
        if not self.goes_without:
            raise error
        notices.continues_without_key(self.task.name, self.message.id, self.key, error)
        self._note_heir(is_handed_over=request.may_hold)
        self.header, self.sending = replace(self.header, unique=None), Sending()
        return self.sending

    def _note_heir(self, *, is_handed_over: bool) -> None:
        """Note whether the message inherits the lease of the run that publishes it, which then has none."""
        run = self.origin.run
        if self.call.inherits and run and run.unique:
            run.unique.is_handed_over = is_handed_over

    def _existing_result(self) -> Any:
        """Return the handle of the task that holds the key, for a call that is not sent."""
        assert self.sending  # noqa: S101 - it was refused
        name, key, existing_id = self.task.name, self.key, self.sending.existing_id
        if self.sending.kind == "error":
            raise DuplicateTask(
                f"task {name} publishes a call with its own unique key {key} inside its body, which would be "
                "skipped each time: use Unique(until='started'), or publish it with unique=None",
                key,
                existing_id,
            )
        if self.option and self.option.on_conflict == "raise" and not is_celery_beat(self.options):
            raise DuplicateTask(
                f"task {name} was not published: unique key {key} is held by {existing_id}", key, existing_id
            )
        notices.not_sent(name, key, existing_id)
        result = self._result_of(existing_id)
        result.outcome, result.existing_id, result.key = "skipped", existing_id, key
        return result

    def _result_of(self, task_id: str) -> Any:
        return (self.options.get("result_cls") or self.services.app.AsyncResult)(task_id)

    def _release(self) -> None:
        """Release the key, or return an inherited key to its run, which continues with an error.

        A message that was sent in spite of the error, and runs already, keeps the key.
        """
        key, store = self.key, self.store
        undo = self._undo(unpublished(self.call, self.services.ttl(self.option)))
        try:
            replies = Attempts(2).make(lambda: [store.apply(key, operation) for operation in undo])
            self._note_heir(is_handed_over=not isinstance(replies[-1].answer, Granted))
        except Exception as error:  # noqa: BLE001 - the caller gets the first error
            what = f"unique key {key} of a message that was not published could not be released; retrying"
            notices.trouble(what, error)
            self._owe()

    def _owe(self) -> None:
        """Release the key in the background. The run of an inherited key may have ended by then."""
        claim = self.call.claim
        undo = self._undo(claim.release("open"))
        self.services.releaser.add(*((claim.key, operation) for operation in undo))

    def _undo(self, operation: KeyOperation) -> list[KeyOperation]:
        """Return the operations that undo a request, also one without an answer, which may still arrive.

        If the request has sent the message, the message keeps its key.
        """
        if not (self.request.is_unanswered or self.request.may_be_sent):
            return [operation]
        is_release = isinstance(operation, Release)
        give_up = GiveUp(self.call.claim.id, releases=is_release)
        return [give_up] if is_release else [give_up, operation]


def _acquisition(asked: Ask) -> AcquireAlone:
    assert isinstance(asked.operation, AcquireAlone)  # noqa: S101 - a call acquires, and does nothing else
    return asked.operation
