"""Publishes a message of a task with `order="published"`: it joins the line of its lock first.

The encoded message is sent only if a slot is offered to it, else it is republished from the store in its
turn. Where broker and store are one Redis, the request for its place also sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu.compression import decompress

from celery_exclusive import outcomes
from celery_exclusive.core.operations import Answer, Applied, Enqueue, KeyOperation, Parked, Remove
from celery_exclusive.core.room import Share
from celery_exclusive.errors import StoreError
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage, queue_of
from celery_exclusive.options.amounts import microseconds_until
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.asking import AskingPublish
from celery_exclusive.publishing.long_lines import warn_of_long_line
from celery_exclusive.signals import lock_outcome

if TYPE_CHECKING:
    from celery_exclusive.options.declared import Exclusive
    from celery_exclusive.publishing.message import Message
    from celery_exclusive.seams.kombu_message import Captured, Encoded


class OrderedPublish(AskingPublish):
    """A message that is about to be published in order; `may_be_sent`: it may be in line."""

    _has_no_store = False
    """Whether the store has not answered, and the message is sent without its place."""

    def __init__(self, message: Message, header: Header, option: Exclusive) -> None:
        assert header.exclusive  # noqa: S101 - else it has no line
        super().__init__(message, header, header.exclusive, option)
        self.option = option
        if option.order is None:  # then the call ends as a plain one if the store does not answer
            self.goes_without = True

    def publish(self) -> Any:
        """Let Celery publish the message, and kombu send it only if its turn has come."""
        try:
            self.note_store()
        except StoreError as error:
            self._go_without_place(error)
        plain, is_asked_for = replace(self.header), self.option.order is not None
        # Without an epoch it counts as redelivered.
        self.header.offered, self.header.promoted = self.key, self.header.store or ""
        return self.message.send(self.header, self._take_place, plain=plain, must_capture=is_asked_for)

    def _take_place(self, captured: Captured) -> Any:
        """Put the message into the line, and send it if its turn has come or the store does not answer."""
        has_queue = self._leads_to_a_queue(captured.encoded)
        if not has_queue or self.leads_elsewhere(captured):  # from our line it would go to this app's broker
            store = None if has_queue else self.header.store
            placeless = replace(self.header, offered=None, promoted=None, store=store)
            return self.message.send_captured(captured, placeless)
        self.message.write_header(captured, self.header)
        try:
            if not self._has_no_store and self._is_done(captured):
                self.may_hold = False  # an interruption from here on is none of the publishing
                return None
        except StoreError as error:
            self._go_without_place(error)
        header = replace(self.header, promoted="") if self._has_no_store else self.header
        return self.message.send_captured(captured, header)

    def _is_done(self, captured: Captured) -> bool:
        """Put the message into the line. Return whether it has been sent, or is sent when its turn comes."""
        terms = self._terms(captured.encoded)
        if push := self.prepare_push(captured):
            channel, to, payload = push
            signed = self.services.signer.sign_parked(payload, self.key, self.id)
            enqueue = Enqueue(self.id, signed, **terms)
            if answer := self.push(enqueue, channel, to, None if signed is payload else payload):
                self._note_place(answer)
                return True
        self._has_one_place = False  # if kombu tries again, no request would push the offer that is there
        stored = stored_message(captured.encoded, self.header).dump()
        enqueue = Enqueue(self.id, stored, **terms)
        answer = self.request(enqueue, sends=True)
        if answer == Applied(True):
            return False
        self._note_place(answer)
        captured.declare()
        return True

    def _note_place(self, answer: Answer | None) -> None:
        if isinstance(answer, Parked):
            warn_of_long_line(self.message.task.name, self.key, answer.position)
            if lock_outcome.receivers:
                outcomes.joined_line(self._subject, answer.position, answer.by)

    def _terms(self, encoded: Encoded) -> dict[str, Any]:
        goes_on = bool(self.message.origin.run or self.message.options.get("retries"))
        queue = queue_of(encoded.exchange, encoded.routing_key)
        share = self.message.share_of(self.option)
        return terms_of(self.option, share, encoded.headers, queue, goes_on=goes_on)

    def _leads_to_a_queue(self, encoded: Encoded) -> bool:
        """Whether a worker can publish this message to its queue again.

        Another exchange may lead to several queues: there a call takes its place only if its option says so.
        """
        return not encoded.exchange if self.option.order is None else leads_to_a_queue(encoded)

    @property
    def _subject(self) -> Subject:
        return Subject(self.message.task.name, self.message.id, self.key)

    def _go_without_place(self, error: StoreError) -> None:
        """Let the message be sent without its place, or raise if two requests with it have no answer."""
        is_unknown = self._is_patient and self.may_be_sent and not self.message.origin.is_celerys
        if not self.goes_without or is_unknown:
            raise error
        outcomes.continues_without_place(self._subject, error)
        self._has_no_store = True

    def undoing(self) -> tuple[list[KeyOperation], list[KeyOperation]]:
        """Remove the message from the line: its caller gets an error, so no process publishes it later."""
        remove: list[KeyOperation] = [Remove(self.id, "superseded")]
        return remove, remove


def terms_of(
    option: Exclusive, share: Share, headers: Mapping[str, Any], queue: str, *, goes_on: bool
) -> dict[str, Any]:
    """Return the terms on which a message waits. What goes on with a run does not give up or replace."""
    expires_in = microseconds_until(headers.get("expires"))
    room = {"limit": option.most, "rates": option.rates, **share.fields}
    terms = {**room, "expires_in": expires_in, "queue": queue}
    return terms if goes_on else {**terms, "gives_up_in": option.gives_up_in, "replaces": option.replaces}


def leads_to_a_queue(encoded: Encoded) -> bool:
    if not encoded.exchange:
        return True
    named = [getattr(entity, "exchange", None) for entity in encoded.declare or ()]
    return encoded.exchange in [it.name for it in named if it and it.type != "fanout"]


def stored_message(encoded: Encoded, header: Header) -> StoredMessage:
    """Return the stored message that a worker would make of the delivery of this message."""
    body, headers = encoded.body, encoded.headers
    if compression := headers.get("compression"):
        body = decompress(body, compression)
    properties = {**encoded.properties, "priority": encoded.priority}
    kind, coding, to = encoded.content_type, encoded.content_encoding, encoded.exchange or ""
    return StoredMessage.of((body, kind, coding, headers, properties, encoded.routing_key, to), header)
