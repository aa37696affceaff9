"""A message at the point where kombu has encoded it, and the Redis channel that would push it.

kombu makes a new client for each request of a channel, which takes longer than the request. All these clients
use the connections of the channel's pool, and do not differ: one is kept. But where a credential provider
changes the password of open connections, each new client passes its pool to the provider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any, NamedTuple

from kombu import Producer, Queue
from kombu.utils.json import dumps

Sender = Callable[["Captured"], Any]
"""A function that sends a captured message, or not. kombu calls it again if the connection is lost."""


class Encoded(NamedTuple):
    """A message that kombu has encoded: the first arguments of `Producer._publish`."""

    body: Any
    priority: int | None
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    routing_key: str
    mandatory: bool
    immediate: bool
    exchange: str
    declare: Any


def capturing(producer: Any, header: str, sender: Sender) -> Any:
    """Return a producer for one message, which `sender` gets when kombu has encoded it.

    It shares the state of `producer`. Messages without this header, as Celery's event, are sent as usual.
    """
    cls: Any = type(producer)
    cls = _capturing_class(cls)
    own = cls.__new__(cls)
    own.__dict__ = producer.__dict__
    own._header, own._sender = header, sender
    return own


@cache
def _capturing_class(cls: Any) -> Any:
    def _publish(  # noqa: PLR0913, PLR0917 - the parameters of kombu's, whose order the probe checks
        self: Any,
        body: Any,
        priority: int | None,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        declare: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        encoded = Encoded(
            body,
            priority,
            content_type,
            content_encoding,
            headers,
            properties,
            routing_key,
            mandatory,
            immediate,
            exchange,
            declare,
        )
        captured = Captured(self, encoded, more, named)
        return self._sender(captured) if self._header in headers else captured.send()

    return type(cls.__name__, (cls,), {"__slots__": ("_header", "_sender"), "_publish": _publish})


class Captured:
    __slots__ = ("_more", "_named", "encoded", "producer")

    def __init__(self, producer: Any, encoded: Encoded, more: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.producer, self.encoded, self._more, self._named = producer, encoded, more, named

    def set_header(self, name: str, value: object) -> None:
        """Set a header of the message, also for further attempts of kombu to send it."""
        self.encoded = self.encoded._replace(headers={**self.encoded.headers, name: value})

    def declare(self) -> None:
        """Declare its queue as kombu does, but without the copy that kombu makes before it looks."""
        for entity in self.encoded.declare or ():
            if not _is_declared(entity, self.producer.channel):
                self.producer.maybe_declare(entity)

    def send(self) -> Any:
        own: Any = super(type(self.producer), self.producer)
        return own._publish(*self.encoded, *self._more, **self._named)

    def prepare_push(self) -> tuple[Any, str, str] | None:
        """Declare its queue; return the Redis channel, the list and the text of the push that kombu would do.

        None: kombu sends it in another way, or a tracer expects to be called for what kombu sends.
        """
        encoded, channel, cls = self.encoded, self.producer.channel, _redis_channel()
        if encoded.exchange or type(self.producer).__base__ is not Producer or type(channel) is not cls:
            return None
        if are_wrapped((cls._put, cls), (cls.basic_publish, cls.__base__), (Producer._publish, Producer)):
            return None
        if is_in_batch(self.producer) or isinstance(encoded.properties.get("reply_to"), Queue):
            return None
        self.declare()
        if encoded.routing_key in getattr(channel, "_expires", ()):  # since its declaration
            return None
        (to,), payload = lists_and_payload(channel, encoded)
        return channel, to, payload


def _is_declared(entity: Any, channel: Any) -> bool:
    """Whether kombu has declared a queue or an exchange on this connection, and remembers it."""
    known = getattr(getattr(channel.connection, "client", None), "declared_entities", ())
    return bool(getattr(entity, "can_cache_declaration", False)) and hash(entity) in known


def push_or_send(captured: Captured) -> Any:
    """Send a message as kombu does, with a kept client where the broker is a Redis."""
    push = captured.prepare_push()
    if push is None:
        return captured.send()
    channel, to, payload = push
    client_of(channel).lpush(to, payload)
    return None


def push_to_head(captured: Captured) -> None:
    """Push a message to the right end of its lists on Redis, from which kombu consumes."""
    channel = captured.producer.channel
    lists, payload = lists_and_payload(channel, captured.encoded)
    with channel.conn_or_acquire() as client:
        for to in lists:
            client.rpush(to, payload)


def lists_and_payload(channel: Any, encoded: Encoded) -> tuple[list[str], str]:
    """Return the lists onto which a Redis channel pushes a message, and the text that it pushes."""
    message = channel.prepare_message(*encoded[:6])
    channel._inplace_augment_message(message, encoded.exchange, encoded.routing_key)
    priority = channel._get_message_priority(message, reverse=False)
    queues = channel._lookup(encoded.exchange, encoded.routing_key)
    return [channel._q_for_pri(queue, priority) for queue in queues], dumps(message)


def is_in_batch(producer: Any) -> bool:
    """Whether this thread's messages are sent later, all together, by the channel of the first."""
    return getattr(getattr(producer, "_batch_local", None), "current", None) is not None


def is_of_pool(producer: Any, pool: Any) -> bool:
    """Whether a producer is in use, and returns to this pool."""
    return producer in getattr(pool, "_dirty", ())


def are_wrapped(*methods: tuple[Any, Any]) -> bool:
    """Whether another package has wrapped one of these methods, each with the class that defines it."""
    for method, cls in methods:
        if type(method) is not FunctionType or method.__globals__ is not vars(sys.modules[cls.__module__]):
            return True
    return False


@cache
def _redis_channel() -> Any:
    from kombu.transport.redis import Channel  # which a publisher for another broker does not load

    return Channel


def keep_client(channel: Any) -> None:
    """Let this channel keep its client, if it is one of kombu's own for Redis."""
    is_known = type(channel).__module__ == "kombu.transport.redis" and hasattr(channel, "_create_client")
    if is_known and "_create_client" not in vars(channel):
        channel._create_client = partial(_kept, channel, channel._create_client)


def client_of(channel: Any) -> Any:
    """Return the client that a channel keeps. Other users of the channel get new clients, as before."""
    return _kept(channel, channel._create_client)


def _kept(channel: Any, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the client that this channel keeps, or a new one that `make` makes."""
    if args or options or channel.pool.connection_kwargs.get("credential_provider"):
        return make(*args, **options)  # with arguments for the pool of an event loop, which is rare
    kept = vars(channel).get("_exclusive_client")
    if kept is None or kept.connection_pool is not channel.pool:  # a new pool, as after a fork
        kept = channel._exclusive_client = make()
    return kept
