"""The data that a store keeps of one key: its document, and the part of its line that a step reads.

Times are whole microseconds of the store's clock, since a fence is one too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from celery_exclusive.core.room import NEVER as NEVER  # noqa: PLC0414 - others import it from here
from celery_exclusive.core.room import NO_LIMIT, NO_TERMS, Rates, Room, Terms

SECOND = 1_000_000
RENEWALS_PER_TTL = 3
"""The number of renewals within one `ttl`: two of them may fail."""
RECALLED_AT_ONCE = 100
"""The most messages of a key that one sweep recalls. The next sweep for the rest is due at once."""
WOKEN_AT_ONCE = 1_000_000
"""The bytes of messages after which a sweep looks at no further key. The next one is due at once."""
SOON = SECOND
"""How far a sweep looks ahead for the next key that is due."""
Phase = Literal["running", "queued", "again", "period"]
OwnerPhase = Literal[Phase, "offered", "rate", "paused", "hold", "part"]
NOT_BEGUN: tuple[Phase, ...] = ("queued", "again")
State = Literal["waiting", "aside", "behind", "shut"]
NAMED = 10
"""The most owners that an answer names. A step reads all holders of a key that has no more than these."""
ENDED_AT_ONCE = 100
"""The most expired leases that one step reads, and ends, of a key with more than `NAMED` holders."""
OFFERED_AT_ONCE = 100
"""The most slots of a key that are offered at a time, so that a large limit does not flood the broker."""
SKIP_UNREADABLE = 600 * SECOND
"""The time for which the reaper skips a key whose data cannot be read."""
PUBLISHED = 5
"""The offers that a message counts as that its publisher has sent with its place, until it is woken. No other
message has as many. In a long queue of busy keys each offer adds a copy."""
AT_BROKER, KEEPS_PLACE = 1, 2
"""The flags in `offers` of an entry behind its run."""
BEGUN, SENT, GIVEN_UP, OVER = "begun", "sent", "given_up", "over "
"""The kinds of tombstones. One that is done is its token alone; `OVER` comes before the newer id."""
SEVERAL = "*"
"""In the place of a queue's name, which has a slash: the messages in line are of several queues."""
SENT_LIFE = 300 * SECOND
"""The life of the mark of a sent call, which is longer than its publisher repeats a request."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder with its lease: its id and token, the expiry and the fence.

    `may_have_copies`: copies of the message may still arrive, since the id had an entry, was redelivered or
    promoted, since a copy has found it running, or since the lease was restored, and its history is lost.
    None may arrive of a message that was sent with its place in line, and only once. A lease that is
    inherited or taken over keeps the flag.
    `phase` is "running", or the state of a unique message: "queued"; queued "again", which runs even if
    another owner holds the key by then; or "period", held until the time is over. A running lease belongs to
    the delivery with its token, any other lease to its id. `cost`: the units that it holds. `part`: of the
    key's tasks.
    """

    id: str
    token: str
    expiry: int
    fence: int
    may_have_copies: bool = False
    phase: Phase = "running"
    cost: int = 1
    part: str = ""

    def belongs_to(self, token: str) -> bool:
        """Whether the delivery with this token may change the lease. Without a run each of its id may."""
        return self.phase != "running" or self.token == token


class Tombstone(NamedTuple):
    """The memory of an id that has left the line, or that a call has used.

    done: finished, by the delivery with the token `of`, or without one. begun: maybe not finished. over: its
    wait has ended, for the newer message `of`. sent, given_up: marks of a call, for its publisher's requests
    alone; the message was sent when its key was granted, or the publisher has given it up.
    """

    kind: Literal["done", "begun", "over", "sent", "given_up"] = "done"
    of: str = ""

    @property
    def is_mark(self) -> bool:
        return self.kind in ("sent", "given_up")

    @property
    def text(self) -> str:
        """The tombstone as stores keep it."""
        return {"done": self.of, "over": OVER + self.of}.get(self.kind, self.kind)

    @classmethod
    def of_text(cls, text: str) -> Tombstone:
        if text in (BEGUN, SENT, GIVEN_UP):
            return cls(text)  # type: ignore[arg-type]
        return cls("over", text.removeprefix(OVER)) if text.startswith(OVER) else cls("done", text)


@dataclass(frozen=True, slots=True)
class Entry:
    """A parked id, with the end of its latest offer and the number of its offers.

    Most entries wait, in line, or "aside" since no worker accepted their offers. An entry "behind" is a copy
    of a message whose id holds a lease: it is removed when the run is done, and joins the line if the lease
    ends before. The `offers` of an entry behind are flags: `AT_BROKER` if the broker has the message, too,
    and `KEEPS_PLACE` if the entry joins the line at its old place. An entry that is "shut" waits until
    its part has room for it, and then joins the line.

    `deaths` counts the runs of the id that were recovered after their leases had expired. At the `deadline`
    of a waiting entry its message expires, and a sweep recalls it: it publishes the message out of turn, so
    that a worker ends it. An entry that `gives_up` does not wait any longer then. A `replaceable` entry waits
    until a newer message of the same kind joins the line, unless a slot is offered to it by then.

    `over`: the wait of the entry has ended, by its deadline ("") or for the newer message with this id. Such
    an entry is aside, gets no slot, and is woken at each deadline, until a delivery has ended its task.
    An entry in line without `offers` is not offered a slot before `offer_until`. `cost`: the units that its
    run will hold and count. `part`: of the key's tasks. `place`: where it stands in line, if that is not in
    the order of `seq`. `joins`: as in `Acquire`.
    """

    id: str
    seq: int
    offer_until: int = 0
    offers: int = 0
    state: State = "waiting"
    deaths: int = 0
    deadline: int = NEVER
    gives_up: bool = False
    replaceable: bool = False
    over: str | None = None
    cost: int = 1
    part: str = ""
    place: int = 0
    joins: bool = False

    def moved(self, **fields: Any) -> Entry:
        """Return an entry for the same task, with these fields and no others of its old state."""
        kept: dict[str, Any] = {"seq": self.seq, "deaths": self.deaths}
        kept |= {"cost": self.cost, "part": self.part}
        return Entry(self.id, **kept | fields)

    @property
    def turn(self) -> tuple[int, str]:
        return self.place or self.seq, self.id

    @property
    def is_over(self) -> bool:
        return self.over is not None

    @property
    def is_published(self) -> bool:
        """Whether its publisher has sent it with its place, and it was not woken since."""
        return self.offers == PUBLISHED and not self.is_over

    @property
    def is_copy_at_broker(self) -> bool:
        """Whether the broker has the message, too, of this entry behind its run."""
        return self.state == "behind" and bool(self.offers & AT_BROKER)

    @property
    def is_window(self) -> bool:
        """Whether the message waits for newer calls, and has not been published."""
        return self.state == "waiting" and self.offer_until > 0 and not self.offers


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts of a key, while it has tasks or terms.

    `waiting`, `held`: units in line, and of runs. `shut`: the tasks that wait for its room, out of line, and
    `first` are at least one more of them than the step may let in. `last`: its last place in line. `due`:
    when a sweep must look; it may be early, never late.
    """

    name: str
    waiting: int = 0
    last: int = 0
    held: int = 0
    shut: int = 0
    weight: int = 1
    limit: int = NO_LIMIT
    terms: Terms = NO_TERMS
    due: int = NEVER
    first: tuple[Entry, ...] = ()

    @property
    def most(self) -> int:
        return self.terms.override.limit if self.terms.override else self.limit

    def at(self, now: int) -> Part:
        """Return the part as it counts at this time: without an override if it was idle for `KEPT`."""
        is_over = self.due <= now and not (self.waiting or self.held or self.shut)
        terms = self.terms.at(now)
        return replace(self, terms=replace(terms, override=None) if is_over else terms)

    def is_idle(self, now: int) -> bool:
        return not (self.waiting or self.held or self.shut) and self.terms.last(now) <= now

    def room(self, now: int, own: int = 0) -> Room:
        """Return the room for one more task in line, or for one that has so many `own` units there.

        One in line was let in: it starts if what runs leaves room, however many others are there by now.
        """
        in_line = 0 if own else self.waiting
        free = 0 if now < self.terms.opens_at else self.most - self.held - in_line
        return ((free, self.most), *((rate.free - in_line, rate.units) for rate in self.terms.active))

    def opens(self, now: int, cost: int) -> int:
        """Return when time may give room to its next task, or earlier; NEVER: only an end of another does."""
        (free, most), *_ = self.room(now)
        times = [self.terms.opens_at]
        if self.terms.override:
            times.append(self.terms.override.until)
        if now >= self.terms.opens_at and free >= min(cost, most):
            waits = [rate.opens(now, min(cost, rate.units) + self.waiting) for rate in self.terms.active]
            times.append(max(waits, default=now))
        return min((at for at in times if now < at), default=NEVER)

    @property
    def text(self) -> str:
        """The part as stores keep it, behind the lines of its terms."""
        numbers = self.waiting, self.last, self.held, self.shut, self.weight, self.limit, self.due
        terms = self.terms.text
        return (terms and f"{terms}\n") + " ".join(map(str, numbers))

    @classmethod
    def of_text(cls, name: str, text: str) -> Part:
        """Read a part. Raises ValueError if another program has written it."""
        terms, _, numbers = text.rpartition("\n")
        waiting, last, held, shut, weight, limit, due = map(int, numbers.split(" "))
        return cls(name, waiting, last, held, shut, weight, limit, Terms.of_text(terms), due)


@dataclass(frozen=True, slots=True)
class Document:
    """The data of a key without its line.

    `holders` are the ones that a step reads, see `readable`. `unread` is the number of the others, and
    `unread_expiry` the expiry of the first of these. `fence` is the highest one that was granted for this
    key, or for more keys of the store. `epoch` is the random string that identifies the store, and changes
    when it loses its data. `deadline` is the deadline of the entry whose message expires first; it may be
    early, never late. `queue`: the queue of the messages in line, `SEVERAL`, or "" if it is not known.
    `terms`: what the key allows besides its limit.
    """

    limit: int = 1
    fence: int = 0
    holders: tuple[Holder, ...] = ()
    epoch: str = ""
    deadline: int = NEVER
    unread: int = 0
    unread_expiry: int = NEVER
    queue: str = ""
    terms: Terms = NO_TERMS

    @property
    def held(self) -> int:
        return len(self.holders) + self.unread


@dataclass(frozen=True, slots=True)
class Line:
    """The part of a line that a step reads, so that a long line costs as little as an empty one.

    * `waiting`: the number of entries in line.
    * `head`: the first `reach()` entries in line.
    * `aside`: up to `reach()` entries aside, in order of (offer_until, id).
    * `behind`: the entries behind their runs; of a key with more than `NAMED` holders the entries
      of the operation's ids and of expired leases. `others_behind`: the number of the other ones.
    * `overdue`: only for a sweep: up to `RECALLED_AT_ONCE` entries whose deadline has come, in order of
      (deadline, id). `deadline`: the first deadline of all other entries.
    * `last`: only for an operation with `replaces`: the last `NAMED` entries in line.
    * `parts`: those whose counts the step may change, and for a sweep up to `NAMED` that are due.
      `parts_due`: when the next of all other parts is due.
    * `entry`: the entry of the operation's id. `ahead`: the number of entries in line before it, or of all
      entries if the id has none. A database stops to count at 1,000 more than the limit.
    * `tombstone`: of the operation's id, as stores keep it.
    """

    waiting: int = 0
    head: tuple[Entry, ...] = ()
    aside: tuple[Entry, ...] = ()
    behind: tuple[Entry, ...] = ()
    others_behind: int = 0
    overdue: tuple[Entry, ...] = ()
    deadline: int = NEVER
    last: tuple[Entry, ...] = ()
    entry: Entry | None = None
    ahead: int = 0
    parts: tuple[Part, ...] = ()
    parts_due: int = NEVER
    tombstone: str | None = None


def by_expiry(holders: Iterable[Holder]) -> list[Holder]:
    return sorted(holders, key=lambda holder: (holder.expiry, holder.id))


def readable(
    first: Iterable[Holder], held: int, ids: Collection[str], now: int
) -> tuple[tuple[Holder, ...], int, int]:
    """Return `holders`, `unread` and `unread_expiry` of the document that a step gets.

    Of more than `NAMED` holders it reads those with the operation's `ids`, the expired ones up to
    `ENDED_AT_ONCE`, and the next to expire: as many as an answer names when two of them have gone. `first`:
    at least these and the next one, out of `held`.
    """
    ordered = by_expiry(first)
    if held <= NAMED:
        return tuple(ordered), 0, NEVER
    expired = [holder for holder in ordered if holder.expiry <= now]
    living = ordered[len(expired) :]
    chosen = {holder.id for holder in (*expired[:ENDED_AT_ONCE], *living[: NAMED + 2])}.union(ids)
    read = tuple(holder for holder in ordered if holder.id in chosen)
    unread_expiry = next((holder.expiry for holder in ordered if holder.id not in chosen), NEVER)
    return read, held - len(read), unread_expiry


def overdue(entries: Iterable[Entry], now: int) -> tuple[tuple[Entry, ...], int]:
    """Return `overdue` and `deadline` of a line with these entries."""
    expiring = sorted((e for e in entries if e.deadline != NEVER), key=lambda e: (e.deadline, e.id))
    due = tuple(entry for entry in expiring[:RECALLED_AT_ONCE] if entry.deadline <= now)
    return due, next((entry.deadline for entry in expiring[len(due) :]), NEVER)


def reach(
    document: Document,
    limit: int = 1,
    ids: Collection[str] = (),
    now: int = 0,
    rates: Rates | None = None,
) -> int:
    """Return the number of entries in line, and of entries aside, that a step may have to read.

    Each slot may be offered to one entry in line, after another one has stepped aside. Each slot may be
    offered to one entry aside before the operation, and to another one after it. The operation's own entry
    may leave, and the entry after all these says when the key is due.

    Of an operation on leases of these `ids` only the slots count that no other living lease has: a step
    under a limit of 100 mostly finds one free. Without them, as for a sweep, each slot counts. `rates` are
    those that the operation brings, which may let more start than the key's. Of a key whose rates let nothing
    start a step may read as many entries as a snapshot shows, nevertheless.
    """
    terms = document.terms.at(now)
    slots = max(limit, document.limit, terms.override.limit if terms.override else 0)
    if ids:
        slots -= document.unread
        slots -= sum([holder.expiry > now and holder.id not in ids for holder in document.holders])
    if terms.rates or rates:
        brought = terms if rates is None else terms.with_rates(rates, now)
        slots = min(slots, max(_may_start(terms), _may_start(brought), NAMED // 2))
    slots = min(slots, OFFERED_AT_ONCE)
    return 2 * max(slots, 1) + 2


def _may_start(terms: Terms) -> int:
    return min((rate.free for rate in terms.active), default=OFFERED_AT_ONCE)
