"""Publishes a message of a task with `order="published"`: the message joins the line of its lock first.

Celery makes the message and kombu encodes it. Then the message joins the line, and is sent only if a slot is
offered to it; otherwise it is republished from the store when its turn comes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu.compression import decompress

from celery_exclusive import notices
from celery_exclusive.core.operations import Applied, Enqueue, KeyOperation, Remove
from celery_exclusive.errors import StoreError
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.amounts import microseconds_until
from celery_exclusive.publishing.asking import AskingPublish

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured, Encoded


class OrderedPublish(AskingPublish):
    """A message that is about to be published in order.

    `may_be_sent` means that the message may be in line, from where it is sent when its turn comes.
    """

    def __init__(self, message: Message, header: Header, option: Exclusive) -> None:
        assert header.exclusive  # noqa: S101 - else it has no line
        super().__init__(message, header, header.exclusive, option)
        self.option = option

    def publish(self) -> Any:
        """Let Celery publish the message, and kombu send it only if its turn has come."""
        return self.message.send(self.header, self._take_place)

    def _take_place(self, captured: Captured) -> Any:
        """Put the message into the line, and send it if its turn has come or the store does not answer."""
        if not _leads_to_a_queue(captured.encoded):
            return captured.send()
        is_its_turn = self._enqueue(captured.encoded)
        if is_its_turn is False:
            return captured.declare()
        epoch = (is_its_turn and self.header.store) or ""  # without one, it counts as redelivered
        offer = replace(self.header, promoted=epoch, offered=self.key)
        return self.message.send_captured(captured, offer)

    def _enqueue(self, encoded: Encoded) -> bool | None:
        """Return whether the message has to be sent now. None: the store does not answer, and may have it."""
        try:
            self.header.store = self.message.publisher.epoch(self.store)
            stored = _stored(encoded, self.header)
            expires_in = microseconds_until(stored.headers.get("expires"))
            enqueue = Enqueue(self.id, stored.dump(), self.option.limit, expires_in)
            return self.request(enqueue, sends=True) == Applied(True)
        except StoreError as error:
            if not self.goes_without:
                raise
            notices.continues_without_place(self.message.task.name, self.message.id, self.key, error)
            return None

    def undoing(self) -> tuple[list[KeyOperation], list[KeyOperation]]:
        """Remove the message from the line: its caller gets an error, so no process publishes it later."""
        remove: list[KeyOperation] = [Remove(self.id, "superseded")]
        return remove, remove


def _leads_to_a_queue(encoded: Encoded) -> bool:
    """Whether a worker can publish this message to its queue again, unlike to a fanout exchange."""
    named = [getattr(entity, "exchange", None) for entity in encoded.declare or ()]
    return not encoded.exchange or encoded.exchange in [it.name for it in named if it and it.type != "fanout"]


def _stored(encoded: Encoded, header: Header) -> StoredMessage:
    """Return the stored message that a worker would make of the delivery of this message."""
    body, headers = encoded.body, encoded.headers
    if compression := headers.get("compression"):
        body = decompress(body, compression)
    properties = {**encoded.properties, "priority": encoded.priority}
    kind, coding, to = encoded.content_type, encoded.content_encoding, encoded.exchange or ""
    return StoredMessage.of((body, kind, coding, headers, properties, encoded.routing_key, to), header)
