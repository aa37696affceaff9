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
    """A delivery, with the message itself, and the options of its task with the values that its call gave.

    `header` is ours, completed by what this delivery shows. `longest_queued_ttl` is how many
    microseconds the unique key is kept while the message waits, unless that `expires` before.
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
        """The message as a store keeps it: made when it is needed, which is never for most messages."""
        return StoredMessage.of(self.content, self.header)

    def at_present(self) -> Received:
        """This delivery, with its unique key held no longer than its message can wait from now on."""
        if self.expires is None:
            return self
        unique = self.unique
        if unique and not unique.ends_by_clock:
            left = no_longer_than(self.longest_queued_ttl, seconds_until(self.expires))
            unique = replace(unique, queued_ttl=left)
        return replace(self, unique=unique, expires_in=microseconds_until(self.expires))

    def is_redelivered_for(self, error: object) -> bool:
        """Whether the message is redelivered for what its body has raised: it asks, or is out of memory."""
        is_requeued = isinstance(error, Reject) and bool(getattr(error, "requeue", False))
        return self.acks_late and (is_requeued or isinstance(error, MemoryError))
