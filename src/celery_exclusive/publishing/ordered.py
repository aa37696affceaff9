"""Publishes a message of a task with `order="published"`: the message joins the line of its lock first.

Celery makes the message and kombu encodes it. Then the message joins the line, and is sent only if a slot is
offered to it; otherwise it is republished from the store when its turn comes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu.compression import decompress

from celery_exclusive import notices
from celery_exclusive.core.operations import Applied, Enqueue, Remove
from celery_exclusive.errors import NotDone, StoreError, StoreRefused, StoreUnavailable, is_away
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.amounts import microseconds_until
from celery_exclusive.publishing.impatient_store import store_or_impatient
from celery_exclusive.publishing.origin import Origin
from celery_exclusive.publishing.unanswered import may_be_sent

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured, Encoded
    from celery_exclusive.stores.base import Reply


class OrderedPublish:
    """A message that is about to be published in order.

    result = OrderedPublish(message, option, header).send()
    """

    def __init__(self, message: Message, option: Exclusive, header: Header) -> None:
        assert header.exclusive  # noqa: S101 - else it has no line
        self.message, self.option, self.header = message, option, header
        self.key, self.id = header.exclusive, header.claim_id(message.id)
        self.goes_without = Origin.of(message).is_celerys or message.services.allows_without(option)
        self.store = message.services.store
        if self.goes_without:
            self.store = store_or_impatient(message.publisher)
        self.may_be_in_line = False

    def send(self) -> Any:
        """Let Celery publish the message, and kombu send it only if its turn has come.

        Raises:
            StoreUnavailable: the store does not answer, and the message may not go without its place. If the
                error has a `task_id`, the message may be in line, and be sent from there.
        """
        try:
            return self.message.send(self.header, self._take_place)
        except BaseException as error:
            if self.may_be_in_line:  # its caller gets an error: no process publishes it later
                self._give_up(is_store_away=is_away(error))
                if isinstance(error, StoreUnavailable):
                    raise may_be_sent(self.message.task.name, self.message.id, error) from error
            raise

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
        was_in_line = self.may_be_in_line
        try:
            self.header.store = self.message.publisher.epoch(self.store)
            stored = _stored(encoded, self.header)
            expires_in = microseconds_until(stored.headers.get("expires"))
            enqueue = Enqueue(self.id, stored.dump(), self.option.limit, expires_in)
            self.may_be_in_line = True
            reply: Reply = self.store.apply(self.key, enqueue)
        except StoreError as error:
            if isinstance(error, (NotDone, StoreRefused)):
                self.may_be_in_line = was_in_line
            if not self.goes_without:
                raise
            notices.continues_without_place(self.message.task.name, self.message.id, self.key, error)
            return None
        return reply.answer == Applied(True)

    def _give_up(self, *, is_store_away: bool) -> None:
        """Remove the message from the line, in the background while the store does not answer."""
        remove = Remove(self.id, "superseded")
        if not is_store_away:
            with suppress(Exception):  # the caller gets the first error
                Attempts(2).make(lambda: self.store.apply(self.key, remove))
                return
        self.message.services.releaser.add((self.key, remove))


def _leads_to_a_queue(encoded: Encoded) -> bool:
    """Whether a worker can publish this message to its queue again, unlike to a fanout exchange."""
    named = [getattr(entity, "exchange", None) for entity in encoded.declare or ()]
    return not encoded.exchange or encoded.exchange in [it.name for it in named if it and it.type != "fanout"]


def _stored(encoded: Encoded, header: Header) -> StoredMessage:
    """Return the stored message that a worker would make of the delivery of this message."""
    body, headers = encoded.body, {**encoded.headers, HEADER: header.write()}
    if compression := headers.get("compression"):
        body = decompress(body, compression)
    properties = {**encoded.properties, "priority": encoded.priority}
    return StoredMessage.made(
        body,
        encoded.content_type,
        encoded.content_encoding,
        headers,
        properties,
        encoded.routing_key,
        encoded.exchange or "",
    )
