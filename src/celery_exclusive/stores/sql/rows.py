"""The contents of rows: their fields, and the text of a lock's document."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Final, NamedTuple, get_args

from celery_exclusive.core.records import NAMED, NEVER, Document, Entry, Holder, State
from celery_exclusive.core.room import NO_TERMS
from celery_exclusive.stores.damaged import (
    MOST,
    Damaged,
    check_holders,
    check_numbers,
    check_one_of,
    check_type,
    check_within,
    read_terms,
)
from celery_exclusive.stores.document_store import shut_in
from celery_exclusive.stores.text import to_bytes, to_text

_HOLDERS = ', "holders": '
_STATES: Final = get_args(State)
_GIVES_UP, _REPLACEABLE, _JOINS = 1, 2, 4
"""The flags of an entry."""
_MOST_OFFERS = 10_000
"""Offers double in length each time, so nothing comes near: the next length would be a number without end."""


class Space(NamedTuple):
    """The row of a namespace, and until when the record of a worker is kept."""

    fence: int
    reaped: int
    epoch: str
    broker: bytes | None
    broker_until: int | None
    known_until: int | None

    def check(self) -> None:
        """Raise Damaged if a column does not hold what it should."""
        check_within(0, self.fence, NEVER)
        check_numbers(self.reaped, self.broker_until or 0, self.known_until or 0)
        check_type(bytes, b"" if self.broker is None else self.broker)

    def is_swept(self, now: int, every: int) -> bool:
        """Whether a sweep came within the last `every` microseconds. A clock that went back needs one."""
        return self.reaped <= now < self.reaped + every


class Found(NamedTuple):
    """The rows of a namespace, of a key, and of an id there. The fields of a missing row are None."""

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
            check_lock(self.version, self.ends)
            check_within(0, self.fence, NEVER)
            check_numbers(self.due or 0, self.waiting, self.aside, self.behind)
            check_type(str, self.document)
        if self.token is not None:
            check_type(bytes, self.token)
            check_numbers(self.until)


def check_lock(version: Any, ends: Any) -> None:
    """Raise Damaged if the columns that each change of a lock compares or writes are odd."""
    check_within(1, version, MOST - 1)  # 0 is the version of a key without a row
    check_numbers(ends or 0)


def entry(id: bytes, *row: Any) -> Entry:
    seq, offer_until, offers, state, *fields, flags, newer, cost, part, place = row
    check_type(bytes, id)  # SQLite keeps a text where bytes belong
    check_numbers(flags)
    if newer is not None:
        check_type(bytes, newer)
    over = None if newer is None else to_text(newer)
    gives_up, replaceable = bool(flags & _GIVES_UP), bool(flags & _REPLACEABLE)
    check_type(bytes, part)
    if str(state).startswith("shut"):
        check_one_of((shut_in(to_text(part)),), state)
        state = "shut"
    entry = Entry(to_text(id), seq, offer_until, offers, state, *fields)
    entry = replace(
        entry,
        gives_up=gives_up,
        replaceable=replaceable,
        joins=bool(flags & _JOINS),
        over=over,
        cost=cost,
        part=to_text(part),
    )
    if entry.state == "waiting" and place != entry.seq:
        entry = replace(entry, place=place)
    check_numbers(entry.seq, entry.offer_until, entry.deaths, entry.deadline, place)
    check_within(0, entry.offers, _MOST_OFFERS)
    check_within(1, entry.cost, NEVER)
    check_one_of(_STATES, entry.state)
    return entry


def fields_of(entry: Entry) -> tuple[bytes | int | str | None, ...]:
    """Return the fields of an entry that follow its id."""
    flags = _GIVES_UP * entry.gives_up + _REPLACEABLE * entry.replaceable + _JOINS * entry.joins
    newer = None if entry.over is None else to_bytes(entry.over)
    place = entry.offer_until if entry.state == "aside" else entry.turn[0]
    state = shut_in(entry.part) if entry.state == "shut" else entry.state
    fields = entry.seq, entry.offer_until, entry.offers, state, entry.deaths, entry.deadline
    return *fields, flags, newer, entry.cost, to_bytes(entry.part), place


def holder(
    id: bytes, token: bytes, expiry: int, fence: int, may_have_copies: int, phase: Any, cost: int, part: bytes
) -> Holder:
    for value in (id, token, part):
        check_type(bytes, value)
    rest = bool(may_have_copies), phase, cost, to_text(part)
    holder = Holder(to_text(id), to_text(token), expiry, fence, *rest)
    check_holders([holder])
    return holder


def fields_of_holder(holder: Holder) -> tuple[bytes | int | str, ...]:
    """Return the fields of a holder that follow its id."""
    lease = to_bytes(holder.token), holder.expiry, holder.fence
    return *lease, int(holder.may_have_copies), holder.phase, holder.cost, to_bytes(holder.part)


def end(document: Document, now: int) -> int:
    """When the last of the document's leases ends, and its terms do; 0: it has neither."""
    return max(document.terms.last(now), *(holder.expiry for holder in document.holders), 0)


def write_document(document: Document) -> str:
    """Put JSON together by hand: the module takes longer for it than SQLite for writing the row.

    Of many holders, which have rows of their own, it has the number.
    """
    last = "" if document.deadline == NEVER else f', "deadline": {document.deadline}'
    leases = "" if document.held > NAMED else ", ".join(map(_write, document.holders))
    if document.held > NAMED:
        last += f', "held": {document.held}'
    if document.queue:
        last += f', "queue": {quote(document.queue)}'
    if document.terms != NO_TERMS:
        last += f', "terms": {quote(document.terms.text)}'
    return f'{{"limit": {document.limit}{_HOLDERS}[{leases}]{last}}}'


def around_lone_expiry(id: str, token: str, phase: str = "running") -> tuple[str, str]:
    """The document's text after its limit and before the expiry of its only lease, and after its fence."""
    before, after = _around_expiry(id, token, phase, "false")
    return f"{_HOLDERS}[{before}", f"{after}]}}"


def with_holder(task_id: str) -> str:
    """Return the pattern for LIKE, with ESCAPE '!', of documents with a holder that is this task."""
    id = re.sub("[!%_]", r"!\g<0>", quote(task_id)[1:-1])
    return f'%"id": "{id}/%'


def _write(lease: Holder) -> str:
    may_have_copies = "true" if lease.may_have_copies else "false"
    before, after = _around_expiry(lease.id, lease.token, lease.phase, may_have_copies, _units(lease))
    return f'{before}{lease.expiry}, "fence": {lease.fence}{after}'


def _units(lease: Holder) -> str:
    cost = "" if lease.cost == 1 else f', "cost": {lease.cost}'
    return f'{cost}, "part": {quote(lease.part)}' if lease.part else cost


def _around_expiry(id: str, token: str, phase: str, may_have_copies: str, units: str = "") -> tuple[str, str]:
    start = f'{{"id": {quote(id)}, "token": {quote(token)}, "expiry": '
    return start, f', "may_have_copies": {may_have_copies}, "phase": "{phase}"{units}}}'


def read_document(text: str, fence: int = 0, epoch: str = "") -> Document:
    """Return the document with this text. Its fence and its epoch stand in columns of their own.

    Many holders, which have rows of their own, are unread.
    """
    try:
        document = json.loads(text)
        limit, holders = document["limit"], tuple(Holder(**lease) for lease in document["holders"])
        deadline, held, queue, terms = (
            document.get("deadline", NEVER),
            document.get("held", 0),
            document.get("queue", ""),
            document.get("terms", ""),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    check_numbers(limit, deadline, held)
    check_type(str, queue)
    check_holders(holders)
    return Document(limit, fence, holders, epoch, deadline, held, queue=queue, terms=read_terms(terms))
