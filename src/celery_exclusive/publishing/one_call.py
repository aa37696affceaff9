"""Acquires a unique key in the call that pushes its message, where broker and store are one Redis database.

kombu makes the message and chooses its list. Only the client through which its channel would push is another
one, for this one message: it acquires the key and pushes in one script. A producer that dies leaves both or
neither. Whatever is unusual goes the plain way, in which the key is acquired before the message is made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from celery.signals import before_task_publish
from kombu import Producer
from kombu.transport.redis import Channel

from celery_exclusive.brokers import broker_urls, scheme
from celery_exclusive.core.operations import AcquireAlone, Answer, Granted, Held
from celery_exclusive.errors import OptionError
from celery_exclusive.services import Services
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.redis import address

_SCHEMES = ("redis", "rediss", "redis+socket")
_PUSHES = {"conn_or_acquire", "lpush"}
"""What kombu's code for pushing a message names; without them it is no version that we know."""
_LARGE = 100_000
"""The most characters of a message that is sent within the timeout of the store, maybe in vain."""
_places: WeakKeyDictionary[Services, str] = WeakKeyDictionary()
"""Where the brokers of apps are, as their settings say."""


def is_possible(services: Services, options: dict[str, Any]) -> bool:
    """Whether broker and store are one database, and nobody would see a message begun that is not sent."""
    if before_task_publish.receivers or options.get("publisher") or options.get("connection"):
        return False  # a receiver, such as a tracer's, waits for after_task_publish
    producer = options.get("producer")
    if producer and producer not in getattr(services.app.producer_pool, "_dirty", ()):
        return False  # a group has one of the pool, as its own; another one may be shared by threads
    place = getattr(services.store, "place", "")
    return bool(place) and place == _place_of_broker(services)


def _place_of_broker(services: Services) -> str:
    if services not in _places:
        _places[services] = _read_place(broker_urls(services.app.conf))
    return _places[services]


def _read_place(urls: list[str]) -> str:
    if len(urls) != 1 or scheme(urls[0]) not in _SCHEMES:
        return ""
    try:
        return address.place(address.parse(urls[0]).options)
    except OptionError:
        return ""


class OneCall:
    """A message that is sent together with its lease, or not at all.

    result = OneCall(services, key, operation, producer).send(publish)     # None: the key is held
    """

    def __init__(self, services: Services, key: str, operation: AcquireAlone, producer: Any = None) -> None:
        self._services, self._key, self._operation = services, key, operation
        self._producer, self._thread = producer, get_ident()
        self.answer: Answer | None = None
        self.is_unanswered = False

    def send(self, publish: Callable[..., Any]) -> Any:
        """Let Celery publish the message through a producer; return None if the key is held."""
        with self._services.app.producer_or_acquire(self._producer) as producer:
            hook = self._hooked(producer) if type(producer) is Producer else None
            try:
                if not hook or vars(producer).setdefault("_publish", hook) is not hook:
                    self._acquire()  # another thread publishes through this one now
                result = publish(producer=producer)
                self._acquire()  # if kombu had no need of a client
            except _NotSent:
                return None
            finally:
                if hook and vars(producer).get("_publish") is hook:
                    del producer._publish
        return result

    @property
    def _is_in_its_thread(self) -> bool:
        """Whether this is its message: another thread may use the same producer meanwhile."""
        return get_ident() == self._thread

    def _hooked(self, producer: Any) -> Callable[..., Any]:
        """Wrap what kombu repeats, on another channel, if a connection is lost."""
        original = producer._publish

        @wraps(original)
        def publish(*args: Any, **options: Any) -> Any:
            if not self._is_in_its_thread:
                return original(*args, **options)
            channel = producer.channel
            if not self._is_known(channel):
                self._acquire()
                return original(*args, **options)
            channel.basic_publish = self._basic_publish(channel)
            try:
                return original(*args, **options)
            finally:
                del channel.basic_publish

        return publish

    def _is_known(self, channel: Any) -> bool:
        """Whether kombu pushes through this channel as we know it, and into the database of the store."""
        if type(channel) is not Channel or not set(Channel._put.__code__.co_names) >= _PUSHES:
            return False
        place: str = getattr(self._services.store, "place", "")
        return address.place(channel.pool.connection_kwargs) == place

    def _basic_publish(self, channel: Any) -> Callable[..., Any]:
        original, acquire = channel.basic_publish, channel.conn_or_acquire

        def client(*args: Any, **named: Any) -> Any:
            return nullcontext(_Client(self, channel)) if self._is_in_its_thread else acquire(*args, **named)

        def basic_publish(message: Any, exchange: str, routing_key: str, **options: Any) -> Any:
            if not self._is_in_its_thread:
                return original(message, exchange, routing_key, **options)
            if exchange or options.get("_publish_batch"):  # to several queues, or none; or later
                self._acquire()
                return original(message, exchange, routing_key, **options)
            channel.conn_or_acquire = client
            try:
                return original(message, exchange, routing_key, **options)
            finally:
                del channel.conn_or_acquire

        return basic_publish

    def push(self, channel: Any, name: str, payload: str | bytes) -> bool:
        """Acquire the key and push the message; return False if it has to be pushed by kombu itself."""
        if self.answer is not None or len(payload) > _LARGE:
            return False
        to, message = f"{channel.global_keyprefix}{name}", payload
        if isinstance(message, str):
            message = message.encode()
        store: Any = self._services.store
        self._ask(lambda: store.acquire_and_push(self._key, self._operation, to, message))
        return self.answer is not None

    def _acquire(self) -> None:
        """Acquire the key alone, since the message goes its plain way."""
        if self.answer is None:
            self._ask(lambda: self._services.store.apply(self._key, self._operation))

    def _ask(self, ask: Callable[[], Reply | None]) -> None:
        self.is_unanswered = True
        reply = ask()
        self.is_unanswered = False
        self.answer = reply.answer if reply else None
        if isinstance(self.answer, Held):
            if self.answer.by and self.answer.by[0].id == self._operation.id:
                self.answer = Granted(self.answer.by[0].fence)  # it was sent before, and runs already
                return
            raise _NotSent


class _Client:
    """Stands for the client through which a channel pushes one message."""

    def __init__(self, call: OneCall, channel: Any) -> None:
        self._call, self._channel = call, channel

    def lpush(self, name: str, payload: str | bytes) -> None:
        if not self._call.push(self._channel, name, payload):
            self.__getattr__("lpush")(name, payload)

    def __getattr__(self, name: str) -> Any:
        """Give the channel its own client for anything else, for a pipeline of a queue that expires."""
        self._call._acquire()
        return getattr(self._channel._create_client(), name)


class _NotSent(BaseException):
    """Ends the publishing of a message whose key is held. It is no error: nothing between may report it."""
