"""One delivery of a message to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery.exceptions import Reject

from celery_exclusive.core.delivery import Delivery
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import Content, StoredMessage
from celery_exclusive.options.amounts import microseconds_until, no_longer_than, seconds_until
from celery_exclusive.options.declared import Exclusive, Unique


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivery):
    """A delivery, with the message itself, and the options of its task with the values of its call.

    `header` is our header, completed with the facts of this delivery. `longest_queued_ttl` are the
    microseconds for which the unique key is held while the message waits, unless the message `expires`
    before.
    """

    header: Header
    content: Content
    longest_queued_ttl: int = 0
    expires: str | None = None
    exclusive_option: Exclusive | None = None
    unique_option: Unique | None = None

    @property
    def body(self) -> bytes | str:
        """The body of the message."""
        return self.content[0]

    @property
    def headers(self) -> Mapping[str, Any]:
        """All headers of the message."""
        return self.content[3]

    @property
    def stored(self) -> StoredMessage:
        """The message as a store keeps it, made on first use: most messages need none."""
        return StoredMessage.of(self.content, self.header)

    def at_present(self) -> Received:
        """Return this delivery with the queued ttl that its message has left from now on."""
        if self.expires is None:
            return self
        unique = self.unique
        if unique and not unique.ends_by_clock:
            left = no_longer_than(self.longest_queued_ttl, seconds_until(self.expires))
            unique = replace(unique, queued_ttl=left)
        return replace(self, unique=unique, expires_in=microseconds_until(self.expires))

    def is_redelivered_for(self, error: object) -> bool:
        """Whether the error of the body makes the message be redelivered: a requeue, or a MemoryError."""
        is_requeued = isinstance(error, Reject) and bool(getattr(error, "requeue", False))
        return self.acks_late and (is_requeued or isinstance(error, MemoryError))
