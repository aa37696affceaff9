"""What rows hold: their fields, and the text of a lock's document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple

from celery_exclusive.core.records import NEVER, Entry, Holder
from celery_exclusive.stores.text import to_text

_HOLDERS = ', "holders": '


class Damaged(ValueError):
    """The rows of a key hold what no release of this library wrote."""


class Found(NamedTuple):
    """The rows of a namespace, of a key, and of an id there; what is of a missing row is None."""

    epoch: str
    floor: int
    version: int | None
    fence: int
    due: int | None
    ends: int | None
    waiting: int
    aside: int
    behind: int
    document: str
    until: int | None
    token: bytes | None

    @property
    def last_fence(self) -> int:
        return self.floor if self.version is None else max(self.fence, self.floor)

    def check(self) -> None:
        """Raise Damaged if a column does not hold what it should."""
        if self.version is not None:
            _check_whole(
                self.version, self.fence, self.due or 0, self.ends or 0, self.waiting, self.aside, self.behind
            )
            if not isinstance(self.document, str):
                raise Damaged(f"{self.document!r} is no text")


def entry(id: bytes, *fields: Any) -> Entry:
    entry = Entry(to_text(id), *fields)
    _check_whole(entry.seq, entry.offer_until, entry.offers, entry.deaths, entry.deadline)
    return entry


def fields_of(entry: Entry) -> tuple[int | str, ...]:
    """Return the fields of an entry that follow its id."""
    return entry.seq, entry.offer_until, entry.offers, entry.state, entry.deaths, entry.deadline


def end(holders: Sequence[Holder]) -> int:
    """When the last of these leases ends; 0: there is none."""
    return max((holder.expiry for holder in holders), default=0)


def write_document(limit: int, leases: Iterable[Holder], deadline: int = NEVER) -> str:
    """Put JSON together by hand: the module takes longer for it than SQLite for writing the row."""
    last = "" if deadline == NEVER else f', "deadline": {deadline}'
    return f'{{"limit": {limit}{_HOLDERS}[{", ".join(map(_write, leases))}]{last}}}'


def around_lone_expiry(id: str, token: str, phase: str = "running") -> tuple[str, str]:
    """The document's text after its limit and before the expiry of its only lease, and after its fence."""
    before, after = _around_expiry(id, token, phase, "false")
    return f"{_HOLDERS}[{before}", f"{after}]}}"


def _write(lease: Holder) -> str:
    may_have_copies = "true" if lease.may_have_copies else "false"
    before, after = _around_expiry(lease.id, lease.token, lease.phase, may_have_copies)
    return f'{before}{lease.expiry}, "fence": {lease.fence}{after}'


def _around_expiry(id: str, token: str, phase: str, may_have_copies: str) -> tuple[str, str]:
    start = f'{{"id": {quote(id)}, "token": {quote(token)}, "expiry": '
    return start, f', "may_have_copies": {may_have_copies}, "phase": "{phase}"}}'


def read_document(text: str) -> tuple[int, tuple[Holder, ...], int]:
    """Return the limit, the holders and the first deadline in line."""
    try:
        document = json.loads(text)
        limit, holders = document["limit"], tuple(Holder(**lease) for lease in document["holders"])
        deadline = document.get("deadline", NEVER)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    _check_whole(limit, deadline, *(each for holder in holders for each in (holder.expiry, holder.fence)))
    return limit, holders, deadline


def _check_whole(*numbers: Any) -> None:
    for number in numbers:
        if not isinstance(number, int):
            raise Damaged(f"{number!r} is no whole number")
