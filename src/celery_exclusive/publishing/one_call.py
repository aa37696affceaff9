"""The request for the unique key of a message, which also pushes it where broker and store are one Redis.

A producer that dies leaves both key and message, or neither. A repeated request, whose first answer was lost,
pushes nothing again: the first one has left its lease, or a mark.

Where broker and store are two servers, the request is sent before the message is made, and its answer is read
before kombu sends the message.

An unusual call goes the plain way, in which the key is acquired before the message is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import before_task_publish
from kombu import Producer

from celery_exclusive import notices
from celery_exclusive.core.operations import AcquireAlone, Answer, Granted, Held
from celery_exclusive.errors import NotDone, StoreRefused, StoreUnavailable
from celery_exclusive.seams.kept_client import client_of
from celery_exclusive.seams.kombu_message import Captured, are_wrapped, is_in_batch, is_of_pool
from celery_exclusive.stores.redis import address

if TYPE_CHECKING:
    from celery_exclusive.messages.header import Header
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.stores.base import Reply

_LARGE = 100_000
"""The most characters of a message that is sent within the timeout of the store, maybe in vain."""


def is_possible(message: Message) -> bool:
    """Whether a message may be made before its key is acquired, since only Celery and kombu see it begun.

    Together with `Publisher.has_one_call` this switches everything in this module beside the plain way.
    """
    if before_task_publish.receivers:
        return False  # a receiver, such as a tracer's, waits for after_task_publish
    if are_wrapped((Celery.send_task, Celery), (Producer.publish, Producer)):
        return False  # a tracer that wraps one would report our exception as an error
    amqp = message.services.amqp
    if are_wrapped((amqp.send_task_message, AMQP)):
        return False  # a sender of the user's may publish through a producer of its own
    producer, pool = message.options.get("producer"), amqp.producer_pool
    if not producer:
        return getattr(pool, "Producer", None) is Producer
    # A group has a producer of the pool, as its own. The maker of another producer may change it in any way.
    return type(producer) is Producer and is_of_pool(producer, pool) and not is_in_batch(producer)


class Request:
    """The request of one message for its unique key.

    * `may_hold`: whether the key may be held for the message.
    * `is_unanswered`: whether a request has no answer, and may still be executed.
    * `may_be_sent`: whether the message went to the server with a request, and was not refused.
    * `is_pushed`: whether the server has pushed the message.
    * `is_refused`: whether another task holds the key.
    """

    def __init__(
        self, message: Message, header: Header, store: Any, key: str, *, may_be_patient: bool
    ) -> None:
        self._message, self._header, self._store, self._key = message, header, store, key
        self._may_be_patient = may_be_patient
        self._has_one_place = self._is_patient = False
        self._begun: Any = None
        self.may_hold = self.is_unanswered = self.may_be_sent = self.is_pushed = self.is_refused = False

    def ask(self, operation: AcquireAlone) -> Answer:
        """Acquire the key, or read the answer to the request that has begun."""
        if self._begun is None:
            self._header.store = self._message.publisher.epoch(self._store)
        self.may_hold = self.is_unanswered = True  # an interruption may come after the grant
        begun, self._begun = self._begun, None
        reply: Reply = self._store.apply(self._key, operation, *((begun,) if begun else ()))
        self.is_unanswered = False
        return self._noted(operation, reply.answer) if isinstance(reply.answer, Held) else reply.answer

    def begin(self, operation: AcquireAlone) -> None:
        """Prepare `ask_and_push`: send the request to another Redis than the broker."""
        self._header.store = self._message.publisher.epoch(self._store)
        self._has_one_place = self._message.services.has_one_place
        if not self._has_one_place:
            self.may_hold = self.is_unanswered = True
            self._begun = self._store.begin(self._key, operation)
            self.may_hold = self.is_unanswered = self._begun is not None

    def ask_and_push(self, operation: AcquireAlone, captured: Captured) -> Answer:
        """Acquire the key, and push the message with it if it is small, and goes to the store's database."""
        push = captured.prepare_push() if self._has_one_place else None
        if push is None or not self._may_push(*push):
            return self.ask(operation)
        try:
            answer = self._push(operation, *push)
        except StoreUnavailable:
            # Celery waits for its broker without end, and so does what it publishes itself: no caller would
            # get the error. The same request does not send the message twice.
            if not (self._may_be_patient and self.is_unanswered):
                raise
            self._is_patient = True
            answer = self._push(operation, *push)
        return answer or self.ask(operation)

    def close(self) -> None:
        """Drop a request that has begun, without reading its answer."""
        if self._begun:
            self._begun.disconnect()

    def _may_push(self, channel: Any, _: str, payload: str) -> bool:
        """Whether the message is small, and goes to the database of the store."""
        place = address.place(channel.pool.connection_kwargs)
        return len(payload) <= _LARGE and place == self._message.services.broker_place

    def _push(self, operation: AcquireAlone, channel: Any, to: str, payload: str) -> Answer | None:
        """Acquire the key and push; return the answer. None: the server refuses to push."""
        client = None
        if self._is_patient:
            client, operation = client_of(channel), replace(operation, repeated=True)
        to = f"{channel.global_keyprefix}{to}"
        may_have_been = self.may_be_sent
        self.may_hold = self.may_be_sent = self.is_unanswered = True
        try:
            reply: Reply | None = self._store.acquire_and_push(
                self._key, operation, to, payload.encode(), client
            )
        except (NotDone, StoreRefused):
            self.may_be_sent = may_have_been
            raise
        self.is_unanswered, self.is_pushed = False, reply is not None
        if reply is None:
            self.may_be_sent = may_have_been
            notices.refuses_to_push(self._store.url, to)
            return None
        return self._noted(operation, reply.answer) if isinstance(reply.answer, Held) else reply.answer

    def _noted(self, operation: AcquireAlone, held: Held) -> Answer:
        if held.by and held.by[0].id == operation.id:
            return Granted(held.by[0].fence)  # it was sent before, and runs already
        self.is_refused, self.may_be_sent, self.is_pushed = True, False, False
        return held
