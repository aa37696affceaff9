"""One delivery of a message, as the main process hands it to whoever runs the task."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Release, Renew
from celery_exclusive.keys import exclusive_key
from celery_exclusive.options import Exclusive
from celery_exclusive.publish import Header
from celery_exclusive.worker.parking import Letter


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which key a delivered message is for, under which claim, and the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    """

    key: str
    id: str
    token: str
    ttl: int
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
            key = exclusive_key(task.name, task.run, option, request.args, request.kwargs)
            header = Header(_publish_id(request), key)
        kin = [request.id]
        if header.next and request.parent_id:
            kin.append(request.parent_id)
        return cls(
            key=str(header.x),
            id=f"{request.id}/{header.id}",
            token=token_hex(8),
            ttl=round(ttl * SECOND),
            redelivered=bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered")),
            promoted=header.promoted,
            kin=tuple(kin),
            letter=Letter.of(message, header),
        )

    def acquire(self, limit: int, *, park: bool) -> Acquire:
        kept = self.letter.dump() if park else None
        return Acquire(self.id, self.token, self.ttl, limit, self.redelivered, self.promoted, kept)

    def renew(self) -> Renew:
        return Renew(self.id, self.token, self.ttl)

    def release(self, *, done: bool) -> Release:
        return Release(self.id, self.token, done)


def _publish_id(request: Any) -> str:
    """For a message from a publisher without this library: what its copies share, and no other has."""
    properties = request.message.properties or {}
    return str(properties.get("delivery_tag") or request.request_dict.get("retries") or 0)
