"""A call that asks the store before its message is sent: for its unique key, or for its place in line.

Where broker and store are one Redis, the request can also push the message. A producer that dies leaves both,
or neither. A repeated request, whose first answer was lost, pushes nothing again: the first one has left its
lease, or a mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.brokers import is_broker_of
from celery_exclusive.core.operations import AcquireAlone, Answer, Enqueue, Granted, Held, KeyOperation
from celery_exclusive.errors import NotDone, StoreRefused, StoreUnavailable, is_away
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.seams.kombu_message import client_of
from celery_exclusive.stores.redis import address

if TYPE_CHECKING:
    from celery_exclusive.messages.header import Header
    from celery_exclusive.options.option import Option
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured
    from celery_exclusive.stores.base import Reply

_LARGE = 100_000
"""The most characters of a message that is sent within the timeout of the store, maybe in vain."""


class AskingPublish:
    """A message that is about to be published, after the store has answered.

    `may_hold`: whether the store may hold the key, or the place. `may_be_sent`: the message went to the
    server with a request, and was not refused. `is_refused`: another task holds the key.
    """

    may_hold = is_unanswered = may_be_sent = is_pushed = is_refused = False
    _has_one_place = _is_patient = False

    def __init__(self, message: Message, header: Header, key: str, option: Option | None) -> None:
        self.message, self.header, self.key = message, header, key
        self.services = services = message.services
        self.id = header.claim_id(message.id)
        self.may_go_without = services.allows_without(option)
        self.goes_without = self.may_go_without or message.origin.is_celerys
        # A wrong setting is an error here, and leaves nothing to undo.
        self.store: Any = services.store
        if self.goes_without and not services.has_one_place:
            self.store = message.publisher.impatient_store
        self.begun: Any = None
        """The request of which the answer is not read yet."""

    def send(self) -> Any:
        """Publish the message as the store decides, and return its handle.

        If that fails or is interrupted, key and line are left as they were. If a StoreUnavailable has a
        `task_id`, the message may have been sent.
        """
        try:
            return self.publish()
        except BaseException as error:
            if self.may_hold:
                self._undo(error)
            if self.may_be_sent and isinstance(error, StoreUnavailable):
                raise self._unanswered(error) from None
            raise

    def publish(self) -> Any:
        raise NotImplementedError

    def undoing(self) -> tuple[list[KeyOperation], list[KeyOperation]]:
        """Return the operations that undo the requests of this call: at once, and in the background."""
        raise NotImplementedError

    def note_undone(self, answer: Answer) -> None:
        """Note the answer to the last of these operations."""

    def request(
        self,
        operation: KeyOperation,
        how: Callable[..., Reply | None] | None = None,
        *more: object,
        sends: bool = False,
    ) -> Answer | None:
        """Send one request, and return its answer. None: the server refuses to push.

        `how`: sends it in the place of the store's `apply`. `sends`: it has the message.
        """
        was_sent, self.is_refused = self.may_be_sent, False
        self.may_hold = True  # an interruption may come after the grant
        self.is_unanswered = True
        self.may_be_sent = was_sent or sends
        try:
            reply = (how or self.store.apply)(self.key, operation, *more)
        except (NotDone, StoreRefused):
            self.may_hold = was_sent
            self.is_unanswered = was_sent
            self.may_be_sent = was_sent
            raise
        self.is_unanswered = False
        if reply is None:
            self.may_hold = was_sent
            self.may_be_sent = was_sent
            return None
        if how and (reply.wake or reply.aside):  # of what `apply` does not follow up
            self.services.courier.follow_up(reply)
        answer: Answer = reply.answer
        if isinstance(answer, Held):
            if answer.by and answer.by[0].id == self.id:  # it was sent before, and runs already
                return Granted(answer.by[0].fence)
            self.is_refused, self.may_be_sent = True, False
        return answer

    def ask(self, operation: KeyOperation) -> Answer:
        """Return the store's answer, also to the request that has begun."""
        if self.begun:
            begun, self.begun = self.begun, None
            answer = self.request(operation, self.store.finish, begun)
        else:
            self.header.store = self.message.publisher.epoch(self.store)
            answer = self.request(operation)
        assert answer  # noqa: S101 - only a push may be refused
        return answer

    def note_store(self) -> None:
        """Note the store in the header, before the message is made."""
        self.header.store = self.message.publisher.epoch(self.store)
        may_push = self.services.has_one_place and self.message.publisher.has_one_call
        self._has_one_place = may_push and self.store.may_push

    def begin(self, operation: AcquireAlone) -> None:
        """Prepare `ask_and_push`: send the request to another Redis than the broker."""
        self.note_store()
        if not self._has_one_place:
            self.may_hold = self.is_unanswered = True
            self.begun = self.store.begin(self.key, operation)
            self.may_hold = self.is_unanswered = self.begun is not None

    def ask_and_push(self, operation: AcquireAlone, captured: Captured) -> Answer:
        """Ask, and push the message with the request if it is small, and goes to the store's database."""
        push = self.prepare_push(captured)
        if push and self.leads_elsewhere(captured):
            push = None
        return (push and self.push(operation, *push)) or self.ask(operation)

    def leads_elsewhere(self, captured: Captured) -> bool:
        """Whether this call goes to another broker than the app's, to which the store's messages go."""
        if self.services.has_one_place:
            pool = getattr(captured.producer.channel, "pool", None)
            return address.place(getattr(pool, "connection_kwargs", {})) != self.services.broker_place
        is_given = self.message.options.get("producer") is not None
        return is_given and not is_broker_of(self.services.app, captured.producer.connection)

    def prepare_push(self, captured: Captured) -> tuple[Any, str, bytes] | None:
        found = captured.prepare_push() if self._has_one_place else None
        if found is None:
            return None
        channel, to, payload = found
        if len(payload) > _LARGE:
            return None
        return channel, f"{channel.global_keyprefix}{to}", payload.encode()

    def push(
        self, operation: AcquireAlone | Enqueue, channel: Any, to: str, payload: bytes | None = None
    ) -> Answer | None:
        """Ask and push the message of the operation, or the `payload`. None: the server refuses to push."""
        while True:
            client = client_of(channel) if self._is_patient else None
            if self._is_patient and isinstance(operation, AcquireAlone):
                operation = replace(operation, repeated=True)
            try:
                answer = self.request(operation, self.store.acquire_and_push, to, payload, client, sends=True)
            except StoreUnavailable:
                # Celery waits for its broker without end, and so does what it publishes itself: no caller
                # would get the error. The same request does not send the message twice.
                if self._is_patient or not self.goes_without:
                    raise
                self._is_patient = True
            else:
                self.is_pushed = answer is not None and not self.is_refused
                if answer is None:
                    notices.refuses_to_push(self.store.url, to)
                return answer

    def _undo(self, error: BaseException) -> None:
        """Undo the requests, in the background while the store does not answer."""
        at_once, later = self.undoing()
        if not is_away(error):
            try:
                answers = Attempts(2).make(lambda: [self.store.apply(self.key, it).answer for it in at_once])
                return self.note_undone(answers[-1])
            except Exception as other:  # noqa: BLE001 - the caller gets the first error
                what = f"key {self.key} of a message that was not published could not be released; retrying"
                notices.trouble(what, other)
        return self.services.releaser.add(*((self.key, operation) for operation in later))

    def _unanswered(self, error: StoreUnavailable) -> StoreUnavailable:
        """Return the error that names the task, so that the caller looks for it before another call."""
        explained = StoreUnavailable(
            f"task {self.message.task.name}[{self.message.id}] may have been sent: {error}. If it was, it "
            "runs, and to call it again may run it twice: look for its result, its effect or its key first"
        )
        explained.task_id = self.message.id
        return explained
