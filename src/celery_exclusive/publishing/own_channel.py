"""A producer and a channel of one message: they share the state of those that kombu has, and change none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kombu import Producer
from kombu.transport.redis import Channel

from celery_exclusive.messages.header import HEADER
from celery_exclusive.messages.kept_client import kept_client


def use_own_channels(amqp: Any) -> None:
    """Let this app publish our messages through channels of their own, which keep their client."""
    if not isinstance(amqp.send_task_message, _SendTaskMessage):
        amqp.send_task_message = _SendTaskMessage(amqp.send_task_message)


def is_replaceable(producer: Any) -> bool:
    """Whether a message may go through a producer of its own in place of this one.

    Not one of a batch: this thread's messages are sent later then, all together, by the channel of the first.
    """
    batch = getattr(getattr(producer, "_batch_local", None), "current", None)
    return type(producer) is Producer and batch is None


def own_channel(channel: Any) -> Any:
    """Return a channel that keeps its client, in place of one of kombu's own for Redis."""
    return OwnChannel(channel) if type(channel) is Channel else channel


class _SendTaskMessage:
    """Stands before the function with which Celery sends a message through a producer."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def __call__(
        self, producer: Any, *message: Any, headers: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        if headers and HEADER in headers and is_replaceable(producer):
            producer = OwnProducer(producer, own_channel)
        return self._send(producer, *message, headers=headers, **options)


class OwnProducer(Producer):
    """A producer for one message, with the state of another one, which threads may share.

    `choose_channel` is given kombu's channel, and returns the one to use.
    """

    __slots__ = ("_choose_channel", "_chosen_channel")

    def __init__(self, producer: Producer, choose_channel: Callable[[Any], Any]) -> None:
        self.__dict__ = producer.__dict__
        self._choose_channel = choose_channel
        self._chosen_channel: Any = None

    def _publish(self, *args: Any, **options: Any) -> Any:
        """Do what kombu repeats, on another channel, if a connection is lost."""
        self._chosen_channel = self._choose_channel(self._get_channel())
        try:
            return super()._publish(*args, **options)
        finally:
            self._chosen_channel = None

    def _channel_to_use(self) -> Any:
        return self._chosen_channel or self._get_channel()

    channel: Any = property(_channel_to_use, Producer._set_channel)


class OwnChannel(Channel):
    """A channel for one message, with the state of another one, and the client that is kept there."""

    __slots__ = ()

    def __init__(self, channel: Any) -> None:
        self.__dict__ = channel.__dict__

    def _create_client(self, *args: Any, **options: Any) -> Any:
        make: Any = super()._create_client  # type: ignore[misc]
        return kept_client(self, make, *args, **options)
