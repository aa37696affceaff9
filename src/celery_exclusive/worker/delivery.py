"""One delivery of a message, as the main process hands it to whoever runs the task."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Release, Renew
from celery_exclusive.errors import OptionError
from celery_exclusive.keys import exclusive_key
from celery_exclusive.options import Exclusive
from celery_exclusive.publish import Header
from celery_exclusive.worker.parking import Letter


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which key a delivered message is for, under which claim, and the message itself.

    The token is new for every delivery, so that two copies of one message are never taken for each other.
    `trouble` says why there is no key although there should be one.
    """

    key: str
    id: str
    token: str
    ttl: int
    redelivered: bool
    promoted: str | None
    kin: tuple[str, ...]
    letter: Letter
    trouble: str | None = None

    @classmethod
    def of(cls, task: Any, option: Exclusive, ttl: float, request: Any) -> Delivery | None:
        """What the message of a Celery request asks for; None if it wants no lock."""
        message = request.message
        header = Header.read(message.headers)
        if header and header.x is None:
            return None
        key, trouble = header.x if header else None, None
        if key is None:
            try:
                key = exclusive_key(task.name, task.run, option, request.args, request.kwargs)
            except OptionError as error:
                key, trouble = "", str(error)
            except TypeError:
                return None  # these arguments do not fit; the body will never be entered
        if header is None:
            header = Header(str(request.request_dict.get("retries") or 0), key)
        kin = [request.id]
        if header.next and request.parent_id:
            kin.append(request.parent_id)
        return cls(
            key=key,
            id=f"{request.id}/{header.id}",
            token=token_hex(8),
            ttl=round(ttl * SECOND),
            redelivered=bool(message.delivery_info.get("redelivered") or message.headers.get("redelivered")),
            promoted=header.promoted,
            kin=tuple(kin),
            letter=Letter.of(message, header),
            trouble=trouble,
        )

    def acquire(self, limit: int, *, park: bool) -> Acquire:
        kept = self.letter.dump() if park else None
        return Acquire(self.id, self.token, self.ttl, limit, self.redelivered, self.promoted, kept)

    def renew(self) -> Renew:
        return Renew(self.id, self.token, self.ttl)

    def release(self, *, done: bool) -> Release:
        return Release(self.id, self.token, done)
