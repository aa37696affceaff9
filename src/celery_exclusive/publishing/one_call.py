"""Acquires a unique key in the call that pushes its message, where broker and store are one Redis database.

Where they are two, the request is sent before the message is made, and the answer read before kombu sends it.

kombu makes the message and chooses its list. Only the client through which its channel would push is another
one, for this one message: it acquires the key and pushes in one script. Producer and channel are of this
message alone, too: they share the state of those that kombu has, and change none. A producer that dies
leaves both or neither. A request that is repeated, since its answer was lost, pushes nothing again: the first
one has left its lease, or a mark.

Whatever is unusual goes the plain way, in which the key is acquired before the message is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

from celery import Celery
from celery.signals import before_task_publish
from kombu import Producer
from kombu.transport.redis import Channel
from typing_extensions import Self

from celery_exclusive import notices
from celery_exclusive.core.operations import AcquireAlone, Answer, Granted, Held, Stale
from celery_exclusive.errors import NotDone, StoreRefused, StoreUnavailable
from celery_exclusive.publishing.own_channel import OwnChannel, OwnProducer, is_replaceable, own_channel
from celery_exclusive.services import Services
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.redis import address

_PUSHES = frozenset({"conn_or_acquire", "lpush"})
"""What kombu's code for pushing a message names; without them it is no version that we know."""
_CELERYS, _KOMBUS = vars(sys.modules[Celery.__module__]), vars(sys.modules[Producer.__module__])
_LARGE = 100_000
"""The most characters of a message that is sent within the timeout of the store, maybe in vain."""


def is_possible(services: Services, options: dict[str, Any]) -> bool:
    """Whether nobody would see a message begun that is not sent."""
    if before_task_publish.receivers:
        return False  # a receiver, such as a tracer's, waits for after_task_publish
    for method, own in ((Celery.send_task, _CELERYS), (Producer.publish, _KOMBUS)):
        if type(method) is not FunctionType or method.__globals__ is not own:
            return False  # a tracer that wraps one reports what raises there as an error
    producer = options.get("producer")
    # A group has one of the pool, as its own; whoever makes another one may do with it what he likes.
    return not producer or producer in getattr(services.app.producer_pool, "_dirty", ())


class OneCall:
    """A message that is sent with its lease, or not at all.

    result = OneCall(services, store, key, operation, producer).send(publish)     # None: the key is held
    """

    def __init__(
        self, services: Services, store: Any, key: str, operation: AcquireAlone, producer: Any = None
    ) -> None:
        self._services, self._store, self._key, self._operation = services, store, key, operation
        self._producer, self._has_one_place = producer, services.has_one_place
        self.answer: Answer | None = None
        self.is_unanswered = False
        self.may_be_sent = False
        """Whether the message went to the server with a request, which has not refused it."""
        self.is_patient = False
        """Whether that request goes through kombu's client, and waits as long as kombu does."""
        self._begun: Any = None

    def send(self, publish: Callable[..., Any], *, is_celerys: bool = False) -> Any:
        """Let Celery publish the message through a producer; return None if the key is held.

        Celery waits for its broker without end, and so does what `is_celerys`: nobody would get the error.
        The message may have been sent by then, or be sent yet: the same request does not send it twice.
        """
        try:
            return self._begin_and_send(publish)
        except StoreUnavailable:
            if not (is_celerys and self.is_unanswered and self._has_one_place):
                raise
            self.is_patient, self._operation = True, replace(self._operation, repeated=True)
            return self._begin_and_send(publish)

    def _begin_and_send(self, publish: Callable[..., Any]) -> Any:
        if not self._has_one_place:
            self.is_unanswered = True
            self._begun = self._store.begin(self._key, self._operation)
            self.is_unanswered = self._begun is not None
        try:
            return self._send(publish)
        finally:
            if self._begun:
                self._begun.disconnect()

    def _send(self, publish: Callable[..., Any]) -> Any:
        with self._services.app.producer_or_acquire(self._producer) as producer:
            try:
                if is_replaceable(producer):
                    result = publish(producer=OwnProducer(producer, self._choose_channel))
                else:
                    self.acquire()
                    result = publish(producer=producer)
                self.acquire()  # if kombu had no need of a client
            except _NotSent:
                return None
        return result

    def _choose_channel(self, channel: Any) -> Any:
        if self._is_known(channel):
            return _Channel(channel, self)
        self.acquire()
        return own_channel(channel)

    def _is_known(self, channel: Any) -> bool:
        """Whether kombu pushes through this channel as we know it, and into the database of the store."""
        if not self._has_one_place or type(channel) is not Channel:
            return False
        if not _PUSHES.issubset(Channel._put.__code__.co_names):
            return False
        return address.place(channel.pool.connection_kwargs) == self._services.broker_place

    def acquire(self) -> None:
        """Acquire the key before the message goes its plain way, or read the answer if that has begun."""
        if self.answer is None:
            self.is_unanswered = True
            begun, self._begun = self._begun, None
            self._note(self._store.apply(self._key, self._operation, begun))
            if self.answer == Stale():
                raise _NotSent

    def push(self, name: str, payload: str | bytes, make_client: Callable[[], Any]) -> bool:
        """Acquire the key and push the message; return False if it has to be pushed by kombu itself."""
        if self.answer is not None:
            return self.may_be_sent  # kombu repeats what was sent
        if len(payload) > _LARGE:
            return False
        message = payload.encode() if isinstance(payload, str) else payload
        client = make_client() if self.is_patient else None
        may_have_been, self.may_be_sent, self.is_unanswered = self.may_be_sent, True, True
        try:
            reply = self._store.acquire_and_push(self._key, self._operation, name, message, client)
        except (NotDone, StoreRefused):
            self.may_be_sent = may_have_been
            raise
        self.may_be_sent = may_have_been or reply is not None
        if reply is None:
            notices.refuses_to_push(self._store.url, name)
        self._note(reply)
        return self.answer is not None

    def _note(self, reply: Reply | None) -> None:
        self.is_unanswered = False
        self.answer = reply.answer if reply else None
        if isinstance(self.answer, Held):
            if self.answer.by and self.answer.by[0].id == self._operation.id:
                self.answer = Granted(self.answer.by[0].fence)  # it was sent before, and runs already
                return
            self.may_be_sent = False
            raise _NotSent


class _Channel(OwnChannel):
    """A channel that acquires the key of its message."""

    __slots__ = ("_call", "_is_pushing")

    def __init__(self, channel: Any, call: OneCall) -> None:
        super().__init__(channel)
        self._call, self._is_pushing = call, False

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **options: Any) -> Any:
        if exchange:  # to several queues, or none
            self._call.acquire()
        else:
            self._is_pushing = True
        return super().basic_publish(message, exchange, routing_key, **options)

    def conn_or_acquire(self, client: Any = None) -> Any:
        return _Client(self, self._call) if self._is_pushing else super().conn_or_acquire(client)


class _Client:
    """Stands for the client through which a channel pushes one message."""

    __slots__ = ("_call", "_channel")

    def __init__(self, channel: Any, call: OneCall) -> None:
        self._channel, self._call = channel, call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def lpush(self, name: str, payload: str | bytes) -> None:
        list_name = f"{self._channel.global_keyprefix}{name}"
        if not self._call.push(list_name, payload, self._channel._create_client):
            self.__getattr__("lpush")(name, payload)

    def __getattr__(self, name: str) -> Any:
        """Give the channel its own client for anything else, for a pipeline of a queue that expires."""
        self._call.acquire()
        return getattr(self._channel._create_client(), name)


class _NotSent(BaseException):
    """Ends the publishing of a message whose key is held, or that was sent before.

    Only Celery's and kombu's own code is between.
    """
