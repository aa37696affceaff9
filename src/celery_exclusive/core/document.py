"""What a store keeps of one key: its document, and the part of its line that a step looks at.

Times are whole microseconds of the store's clock, since a fence is one too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SECOND = 1_000_000
NEVER = 2**53 - 1
Phase = Literal["running", "queued", "again", "period"]
QUEUED: tuple[Phase, ...] = ("queued", "again")
State = Literal["waiting", "aside", "behind"]
OFFERED_AT_ONCE = 100
"""How many places of a key are held open at a time: a large limit must not fill the broker with copies."""
SET_ASIDE = 600 * SECOND
"""For how long the reaper leaves a key alone whose data cannot be read."""
ENTERED = "entered"
"""In the place of a token: the id has begun, is not in line any more, and is not known to have finished."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One lease: who has it (id and token), until when, and its fence.

    `waited` says that copies of its message may still come back: it had an entry or was redelivered. `phase`
    is that of a unique message: "queued" before it is "running", queued "again" if it will run whoever has
    the key by then, or it has the key for a "period". What runs is that of one delivery, who knows its token;
    what does not is that of its id.
    """

    id: str
    token: str
    expiry: int
    fence: int
    waited: bool = False
    phase: Phase = "running"

    def is_of(self, token: str) -> bool:
        return self.phase != "running" or self.token == token


@dataclass(frozen=True, slots=True)
class Entry:
    """A parked id. `offer_until` is when its latest offer ends, `offers` how many it had.

    An entry "behind" is the copy of a message whose id holds a lease: it leaves when the run is done, and
    joins the line anew if the lease ends before. All others wait: in line, or "aside" since nobody
    took their offers.
    """

    id: str
    seq: int
    offer_until: int = 0
    offers: int = 0
    state: State = "waiting"


@dataclass(frozen=True, slots=True)
class Document:
    """What is kept of a key besides its line.

    `fence` is the last number given out, at least for this key; `epoch` is the store's random mark,
    another one after it lost its data.
    """

    limit: int = 1
    fence: int = 0
    holders: tuple[Holder, ...] = ()
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """The part of a line that a step is given, so that a long line costs what an empty one does.

    `waiting` counts the entries in line; `head` is the first `reach()` of them in order of seq, `aside` as
    many of those aside in order of (offer_until, id), `behind` are all of those. `own`, `ahead` (the entries
    in line with a lower seq; all of them if there is no own) and `tombstone` belong to the operation's id: if
    it has finished, the token of the delivery that did, "" where none did, or `ENTERED`.
    """

    waiting: int = 0
    head: tuple[Entry, ...] = ()
    aside: tuple[Entry, ...] = ()
    behind: tuple[Entry, ...] = ()
    own: Entry | None = None
    ahead: int = 0
    tombstone: str | None = None


def reach(document: Document, limit: int = 1) -> int:
    """How many entries in line a step may have to look at.

    As many as there are places get an offer, as many again may step aside first, and the operation's own may
    leave.
    """
    return 2 * min(max(limit, document.limit), OFFERED_AT_ONCE) + 1
