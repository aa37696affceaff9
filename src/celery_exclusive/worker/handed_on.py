"""A message that a worker gets from the store, without a delivery by the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.message import Message

from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.worker.queues import SOURCE


def handed_on(stored: StoredMessage, accept: Any, line: int, at_end: Callable[..., object]) -> Message:
    """Make the message that Celery gets in place of a delivery, with the accepted types of its consumer.

    `line` is the number of tasks that wait for its key. `at_end` is called when Celery would acknowledge it,
    and with `requeue` when it would reject it.
    """
    queue = stored.routing_key
    source = {"queue": queue, "auto_delete": False, "is_fanout": False, "can_be_parked": True}
    fields: dict[str, Any] = {
        "body": stored.body,
        "content_type": stored.content_type,
        "content_encoding": stored.content_encoding,
        "delivery_info": {"exchange": "", "routing_key": queue, SOURCE: source},
        "properties": dict(stored.properties),
        "accept": accept,
        "channel": NoChannel(line, at_end),
    }
    message = Message(**fields)
    message.headers = dict(stored.headers)  # after that: they may say that the body is compressed, as it was
    return message


def line_of(message: Message) -> int | None:
    """Return the length of the line when the message was handed on. None: a broker has delivered it."""
    return message.channel.line if isinstance(message.channel, NoChannel) else None


class NoChannel:
    """The channel of a message that was handed on: there is nothing to acknowledge.

    The store has the message until its run begins, with late acknowledgement until the run is done, and
    offers it again if the worker does not reach that point.
    """

    no_ack_consumers = None

    def __init__(self, line: int, at_end: Callable[..., object]) -> None:
        self.line = line
        self._at_end = at_end

    def basic_ack(self, *_: object, **__: object) -> None:
        self._at_end()

    def basic_reject(self, *_: object, requeue: bool) -> None:
        self._at_end(requeue=requeue)
