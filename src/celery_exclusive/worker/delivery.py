"""One delivery of a message, as the main process hands it to whoever runs the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Release, Renew, Restore
from celery_exclusive.header import Header
from celery_exclusive.keys import key_of
from celery_exclusive.options import Exclusive
from celery_exclusive.parking import TOP, Letter


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which key a delivered message is for, under which claim, and the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    """

    key: str
    id: str
    token: str
    ttl: int
    limit: int
    redelivered: bool
    promoted: str | None
    kin: tuple[str, ...]
    letter: Letter

    @classmethod
    def of(cls, task: Any, option: Exclusive, ttl: float, request: Any) -> Delivery | None:
        """What the message of a Celery request asks for; None if it wants no lock.

        Raises OptionError or TypeError if no key can be made from its arguments.
        """
        message = request.message
        header = Header.read(message.headers)
        if header and header.x is None:
            return None
        if header is None:
            key = key_of(task.name, task.run, option, request.args, request.kwargs)
            header = Header(_publish_id(request), key)
        restore_priority(request, header)
        redelivered = is_redelivered(message)
        if redelivered or header.redelivered:  # worker_deduplicate_successful_tasks asks, and bodies may
            header = replace(header, redelivered=True)
            request.delivery_info["redelivered"] = True
        kin = [request.id]
        if header.next and request.parent_id:
            kin.append(request.parent_id)
        return cls(
            key=str(header.x),
            id=f"{request.id}/{header.id}",
            token=token_hex(8),
            ttl=round(ttl * SECOND),
            limit=option.limit,
            redelivered=redelivered,
            promoted=header.promoted,
            kin=tuple(kin),
            letter=Letter.of(message, header),
        )

    @property
    def may_be_in_line(self) -> bool:
        """Whether an earlier delivery of its message may have been parked."""
        return self.redelivered or self.promoted is not None

    def acquire(self, *, park: bool, max_waiting: int | None = None) -> Acquire:
        return Acquire(
            self.id,
            self.token,
            self.ttl,
            self.limit,
            self.redelivered,
            self.promoted,
            self.letter.dump() if park else None,
            max_waiting,
        )

    def renew(self) -> Renew:
        return Renew(self.id, self.token, self.ttl)

    def restore(self) -> Restore:
        return Restore(self.id, self.token, self.ttl, self.limit)

    def release(self, *, done: bool) -> Release:
        return Release(self.id, self.token, done)


def is_redelivered(message: Any) -> bool:
    """Whether the broker has delivered it before. kombu's Redis transport says so in its headers alone."""
    return bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered"))


def restore_priority(request: Any, header: Header) -> None:
    """Give the copy of an offer the priority of its publisher, for what its task publishes: its retry."""
    properties = request.message.properties
    if header.promoted is not None and properties.get("priority") == TOP:
        properties["priority"] = request.delivery_info["priority"] = header.prio


def _publish_id(request: Any) -> str:
    """For a message from a publisher without this library: what its copies share, and no other has."""
    properties = request.message.properties or {}
    return str(properties.get("delivery_tag") or request.request_dict.get("retries") or 0)
