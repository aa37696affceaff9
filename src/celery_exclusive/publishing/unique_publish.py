"""Publishes a message with a unique key: the key is acquired before, and released if it is not sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from celery.utils import uuid
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
from celery_exclusive.leases.insist import insist
from celery_exclusive.messages.header import Header
from celery_exclusive.options.declared import Unique
from celery_exclusive.publishing.celery_beat import is_celery_beat
from celery_exclusive.publishing.impatient_store import store_or_impatient
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.publishing.queued_ttl import queued_ttl
from celery_exclusive.publishing.store_epoch import store_epoch
from celery_exclusive.publishing.unanswered import may_be_sent
from celery_exclusive.run import current_run, enclosing_tasks
from celery_exclusive.services import Services
from celery_exclusive.stores.base import Reply

_GRANTED = Sending(may_hold=True)


class UniquePublish:
    """A message of a task with a unique key, about to be sent.

    return UniquePublish(services, task, option, header, options, origin).send(send)
    """

    def __init__(
        self,
        services: Services,
        task: Any,
        option: Unique | None,
        header: Header,
        options: dict[str, Any],
        origin: Origin,
        new_id: str | None = None,
    ) -> None:
        assert header.unique  # noqa: S101 - else there is nothing to do here
        self.services, self.task, self.header, self.options = services, task, header, options
        self.origin = origin
        self.task_id: str = options.get("task_id") or new_id or uuid()
        self.key, self.until = header.unique
        self.id = header.claim_id(self.task_id)
        self.is_simple = not (current_run.get() or options.get("retries"))
        """Whether no run publishes it, so that it inherits nothing, and nobody's end or body has its key."""
        self.option = services.unique(task, header.values) if origin.is_retry else option
        self.may_go_without = services.allows_without(self.option)
        self.goes_without = self.may_go_without or origin.is_celerys
        self.queued_ttl = queued_ttl(services, self.option, self.until, options)
        if not self.is_simple and self.call.inherits:
            self.header = replace(header, follows=publish_id(self.call.inherits.id))
        self.may_hold = False
        self.is_unanswered = self.may_be_sent = False
        self.result: Any = None
        """The handle of the message, if it was sent in the call that acquired its key."""

    @cached_property
    def call(self) -> Call:
        """What its plan knows of this call."""
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

    def send(self, publish_message: Callable[..., Any], *, is_ordered: bool = False) -> Any:
        """Send the message with this header and task id, or return the handle of the task that holds the key.

        If sending fails or is interrupted, the key is left as it was.

        Raises:
            DuplicateTask: another task holds the key, and the option says "raise".
            StoreUnavailable: the store does not answer, and the message does not go without its key. If it
                has a `task_id`, the message may have been sent.
        """
        self.publish_message = publish_message
        services = self.services
        is_possible = services.is_redis and "one call" in services.fast
        self.may_be_one_call = is_possible and not (is_ordered or self.may_go_without)
        try:
            sending = self._acquire()
            if sending.kind == "skip":
                return self._existing_result(sending.existing_id)
            if sending.kind == "duplicate":
                self.header = replace(self.header, duplicate_of=sending.existing_id)
            result = self.result
            if result is None and sending.kind == "sent":
                result = self._result_of(self.task_id)
            elif result is None:
                result = publish_message(self.header, self.task_id)
        except BaseException as error:
            if self.may_hold and is_away(error):
                self._owe()
            elif self.may_hold:
                self._release()
            if self.may_be_sent and isinstance(error, StoreUnavailable):
                raise may_be_sent(self.task.name, self.task_id, error) from error
            raise
        result.outcome, result.existing_id, result.key = "published", None, self.key
        return result

    def _acquire(self) -> Sending:
        key = self.key
        # A wrong setting is an error here, and leaves nothing to undo.
        self.store = store_or_impatient(self.services) if self.goes_without else self.services.store
        try:
            sending = self._sending()
        except StoreError as error:
            is_not_done = isinstance(error, (NotDone, StoreRefused))
            if is_not_done and self.is_unanswered and not self.may_be_sent:
                self.may_hold = False
            if not self.goes_without:
                raise
            notices.continues_without_key(self.task.name, self.task_id, key, error)
            self._note_heir(is_handed_over=self.may_hold)
            self.header = replace(self.header, unique=None)  # its worker acquires it, if it can
            return Sending()
        self.may_hold = sending.may_hold
        if not self.is_simple and sending.may_hold:
            self._note_heir(is_handed_over=True)
        if sending.kind == "error":
            raise DuplicateTask(
                f"task {self.task.name} publishes a call with its own unique key {key} inside its "
                "body, which would be skipped each time: use Unique(until='started'), or publish it with "
                "unique=None",
                key,
                sending.existing_id,
            )
        return sending

    def _note_heir(self, *, is_handed_over: bool) -> None:
        """Note whether this inherits the lease of the run that publishes it, which has none then."""
        run = self.origin.run
        if self.call.inherits and run and run.unique:
            run.unique.is_handed_over = is_handed_over

    def _sending(self) -> Sending:
        """Run the plan of this call; a simple one needs it only if its key is held."""
        if not self.is_simple:
            return run_plan(publish(self.call), self._ask)
        phase = phase_of(self.until, "call")
        answer = self._answer(AcquireAlone(self.id, self.header.id, self.queued_ttl, None, phase))
        if isinstance(answer, Granted):
            return _GRANTED
        return run_plan(publish(self.call), lambda _: answer)

    def _ask(self, asked: Ask) -> Answer:
        assert isinstance(asked.operation, AcquireAlone)  # noqa: S101 - a call acquires, and does nothing else
        return self._answer(asked.operation)

    def _answer(self, operation: AcquireAlone) -> Answer:
        self.header.store = store_epoch(self.services, self.store)
        self.may_hold = True  # an interruption may come after the grant
        if self.may_be_one_call and (answer := self._ask_in_one_call(operation)):
            return answer
        self.is_unanswered = True
        reply: Reply = self.store.apply(self.key, operation)
        self.is_unanswered = False
        return reply.answer

    def _ask_in_one_call(self, operation: AcquireAlone) -> Answer | None:
        """Acquire the key while the message is made and sent, if that is possible; None: nothing was done."""
        services, name = self.services, self.task.name
        from celery_exclusive.publishing.one_call import OneCall, is_possible

        if not (self.is_simple or self.call.kind == "call") or not is_possible(services, self.options):
            return None
        if name in services.refused_lately and (holders := self.store.inspect(self.key).holders):
            return Held(holders)  # which costs less than a message that is made and not sent
        call = OneCall(services, self.store, self.key, operation, self.options.get("producer"))
        try:
            publish_message = partial(self.publish_message, self.header, self.task_id)
            self.result = call.send(publish_message, is_celerys=self.origin.is_celerys)
        except OperationalError:
            if call.answer or call.is_unanswered:
                raise
            return None  # there is no broker: the store says what is wrong with it
        finally:
            self.is_unanswered, self.may_be_sent = call.is_unanswered, call.may_be_sent
        if self.result is not None:
            services.refused_lately.discard(name)
        elif isinstance(call.answer, Held):
            services.refused_lately.add(name)
            if not self.origin.has_to_be_sent:
                services.app.AsyncResult(self.task_id)  # when it goes, Celery expects no result any more
        return call.answer

    def _existing_result(self, existing_id: str) -> Any:
        """Return the handle of the task that holds the key, for a call that is not sent."""
        name, key = self.task.name, self.key
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
        """Release the key, or return it to the run that it was inherited from: that goes on, with an error.

        A message that was sent in spite of the error, and runs already, keeps the key.
        """
        key, store = self.key, self.store
        undo = self._undo(unpublished(self.call, self.services.ttl(self.option)))
        try:
            replies, *_ = insist(lambda: [store.apply(key, operation) for operation in undo])
            self._note_heir(is_handed_over=not isinstance(replies[-1].answer, Granted))
        except Exception as error:  # noqa: BLE001 - the caller gets the first error
            what = f"unique key {key} of a message that was not published could not be released; retrying"
            notices.trouble(what, error)
            self._owe()

    def _owe(self) -> None:
        """Release the key in the background; a run that it was inherited from may have ended by then."""
        claim = self.call.claim
        undo = self._undo(claim.release("open"))
        self.services.releaser.add(*((claim.key, operation) for operation in undo))

    def _undo(self, operation: KeyOperation) -> list[KeyOperation]:
        """A request without an answer may still arrive, and must find no key to acquire then.

        If it has arrived, and has sent the message, that keeps its key.
        """
        if not (self.is_unanswered or self.may_be_sent):
            return [operation]
        is_release = isinstance(operation, Release)
        give_up = GiveUp(self.call.claim.id, releases=is_release)
        return [give_up] if is_release else [give_up, operation]
