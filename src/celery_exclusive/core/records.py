"""The data that a store keeps of one key: its document, and the part of its line that a step reads.

Times are whole microseconds of the store's clock, since a fence is one too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

SECOND = 1_000_000
RENEWALS_PER_TTL = 3
"""How often a heartbeat renews a lease before it would expire: two of them may fail."""
NEVER = 2**53 - 1
RECALLED_AT_ONCE = 100
"""How many messages of a key a sweep recalls at a time: the rest is due at once."""
Phase = Literal["running", "queued", "again", "period"]
OwnerPhase = Literal[Phase, "offered"]
NOT_BEGUN: tuple[Phase, ...] = ("queued", "again")
State = Literal["waiting", "aside", "behind"]
OFFERED_AT_ONCE = 100
"""How many slots of a key are offered at a time: a large limit must not fill the broker with copies."""
SKIP_UNREADABLE = 600 * SECOND
"""For how long the reaper skips a key whose data cannot be read."""
AT_BROKER, KEEPS_PLACE = 1, 2
"""What `offers` says of an entry behind its run."""
BEGUN = "begun"
"""Stands for a token in a tombstone: the id has begun and left the line, but may not have finished."""
SENT, GIVEN_UP = "sent", "given_up"
"""Marks of a call, in the place of a tombstone of its message: it was sent by the very step that granted its
key, or its publisher has given it up. They matter to the publisher's requests alone."""
SENT_LIFE = 300 * SECOND
"""How long the mark of a sent call is kept: longer than its publisher repeats a request."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder with its lease: its id and token, the expiry and the fence.

    `may_have_copies`: copies of its message may still arrive, since it had an entry, was redelivered or
    promoted, since one has found it running, or since the lease was restored, and nobody can tell; a lease
    that goes on with another one inherits it.
    `phase` is "running", or the state of a unique message: "queued"; queued "again", which runs even if
    another owner holds the key by then; or "period", held until the time is over. A running lease belongs to
    the delivery with its token, any other lease to its id.
    """

    id: str
    token: str
    expiry: int
    fence: int
    may_have_copies: bool = False
    phase: Phase = "running"

    def belongs_to(self, token: str) -> bool:
        """Whether the delivery with this token may change it: a lease that does not run belongs to its id."""
        return self.phase != "running" or self.token == token


@dataclass(frozen=True, slots=True)
class Entry:
    """A parked id, with the end of its latest offer and the number of its offers.

    An entry "behind" is a copy of a message whose id holds a lease: it is removed when the run is done, and
    joins the line if the lease ends before. Its `offers` are `AT_BROKER` if the broker has that message, too,
    and `KEEPS_PLACE` if it joins the line at its old place, or their sum. All others wait: in line,
    or "aside" since no worker accepted their offers.

    `deaths` counts the runs that were recovered: their leases expired. At the `deadline` of an entry that
    waits its message expires, and is recalled: published out of turn, so that a worker ends it.
    """

    id: str
    seq: int
    offer_until: int = 0
    offers: int = 0
    state: State = "waiting"
    deaths: int = 0
    deadline: int = NEVER


@dataclass(frozen=True, slots=True)
class Document:
    """The data of a key besides its line.

    `fence` is the last one that was granted, at least for this key; `epoch` is the random string that
    identifies the store, and changes when it loses its data. `deadline` is that of the entry whose message
    expires first; it may be early, never late.
    """

    limit: int = 1
    fence: int = 0
    holders: tuple[Holder, ...] = ()
    epoch: str = ""
    deadline: int = NEVER


@dataclass(frozen=True, slots=True)
class Line:
    """The part of a line that a step reads, so that a long line costs as little as an empty one.

    `waiting` counts the entries in line. `head` has the first `reach()` of them in order of seq, `aside` as
    many entries aside in order of (offer_until, id), `behind` all entries behind their runs. `overdue`, for a
    sweep alone, has up to `RECALLED_AT_ONCE` entries whose deadline has come, in order of (deadline, id), and
    `deadline` is the first of all others. `entry`, `ahead` and `tombstone` belong to the operation's id: its
    entry; the number of entries in line before it (all of them without an entry); and, if it has finished,
    the token of the delivery that finished, "" without one, or `BEGUN`, or a mark of its call.
    """

    waiting: int = 0
    head: tuple[Entry, ...] = ()
    aside: tuple[Entry, ...] = ()
    behind: tuple[Entry, ...] = ()
    overdue: tuple[Entry, ...] = ()
    deadline: int = NEVER
    entry: Entry | None = None
    ahead: int = 0
    tombstone: str | None = None


def overdue(entries: Iterable[Entry], now: int) -> tuple[tuple[Entry, ...], int]:
    """Return `overdue` and `deadline` of a line with these entries."""
    expiring = sorted((e for e in entries if e.deadline != NEVER), key=lambda e: (e.deadline, e.id))
    due = tuple(entry for entry in expiring[:RECALLED_AT_ONCE] if entry.deadline <= now)
    return due, next((entry.deadline for entry in expiring[len(due) :]), NEVER)


def reach(document: Document, limit: int = 1) -> int:
    """Return how many entries in line, and how many aside, a step may have to read.

    In line one per slot gets an offer, and as many may step aside first; aside one per slot gets an offer
    before the operation, and one after it. The operation's own may leave, and the next says what is due.
    """
    return 2 * min(max(limit, document.limit), OFFERED_AT_ONCE) + 2
