"""The state of a key during a step: its holders, its line, and the offers of free slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from celery_exclusive.core.operations import Acquire, AcquireAlone, Owner, Restore, Waiting
from celery_exclusive.core.parts import Parts
from celery_exclusive.core.records import (
    KEEPS_PLACE,
    NAMED,
    NEVER,
    OFFERED_AT_ONCE,
    PUBLISHED,
    SECOND,
    SEVERAL,
    Document,
    Entry,
    Holder,
    Line,
    Phase,
    Tombstone,
    by_expiry,
)
from celery_exclusive.core.room import A_START, AT_ONCE, Room, size, take

FIRST_OFFER = 5 * SECOND
"""How long the first offer lasts; each further offer lasts longer."""
LONGEST_OFFER = 120
"""The longest offer, and the pause between offers to an entry aside, in first offers: 10 minutes."""
ABANDONED = 600 * SECOND
"""The time after its expiry at which a lease with a copy behind it ends without a sweep, at a request."""
SWEEP_AGAIN = SECOND
"""The pause until the next look of a sweep at a key whose expired lease it did not recover."""
PUBLISHED_OFFER = 86_400 * SECOND
"""How long a published message has its slot while no other waits for that: its queue may be long."""
OFFERS_IN_LINE = 8
"""The count at which an entry steps aside: after seven offers, since none that was woken counts as five."""
OFFERS_ASIDE = 64


def owner(lease: Holder, now: int) -> Owner:
    age = max(now - lease.fence, 0)
    return Owner(lease.id, age, max(lease.expiry - now, 0), lease.fence, lease.phase, lease.token)


def waiting(entry: Entry, now: int) -> Waiting:
    left = max(entry.offer_until - now, 0)
    return Waiting(
        entry.id,
        max(now - entry.seq, 0),
        is_offered=left > 0 and entry.state == "waiting" and not entry.is_window,
        not_before=left if entry.is_window else None,
        ends_in=None if entry.deadline == NEVER else max(entry.deadline - now, 0),
        offers=entry.offers,
        deaths=entry.deaths,
        gives_up=entry.gives_up,
        is_aside=entry.state == "aside",
        over=entry.over,
        part=entry.part,
        cost=entry.cost,
        is_shut=entry.state == "shut",
        is_replaceable=entry.replaceable,
    )


def named(leases: Iterable[Holder], own: str = "") -> list[Holder]:
    """Return the holders that an answer names, in the order of their grants: the own, and the next to end."""
    first = sorted(by_expiry(leases), key=lambda lease: lease.id != own)[:NAMED]
    return sorted(first, key=lambda lease: lease.fence)


class KeyState:
    """A document and its line, with the changes of this step.

    `tombstone`: of its message, `mark`: the same, or of its call. `recovers`: whether a sweep ends dead runs
    whose messages are kept; None: no sweep.
    """

    def __init__(self, document: Document, line: Line, id: str, now: int, first_offer: int) -> None:
        self.id = id
        self.line = line
        self.now = now
        self.first_offer = first_offer
        self.recovers: bool | None = None
        self.epoch = document.epoch
        self.deadline = document.deadline
        self.limit = document.limit
        self.fence = document.fence
        self.holders = {holder.id: holder for holder in document.holders}
        self.unread, self.unread_expiry = document.unread, document.unread_expiry
        self.queue = document.queue
        self.terms = document.terms.at(now)
        self.reached = self.terms.reached
        self.rejoined = dict[str, int]()
        """The places of copies that have joined the line again in this step, the last one of each part."""
        of_others = self.terms.extra - sum(lease.cost - 1 for lease in document.holders)
        self.unread_extra = max(of_others, 0) if self.unread else 0
        self.entries = {
            entry.id: entry for entry in (*line.overdue, *line.last, *line.head, *line.aside, *line.behind)
        }
        if line.entry:
            self.entries[self.id] = line.entry
        self.entries.update((entry.id, entry) for part in line.parts for entry in part.first)
        self.parts = Parts(document, line, self.holders, self.entries, now)
        self.waiting, self.shut = line.waiting, self.terms.shut
        self.ahead = line.ahead
        self.mark = None if line.tombstone is None else Tombstone.of_text(line.tombstone)
        self.tombstone = None if self.mark and self.mark.is_mark else self.mark
        self.changed: dict[str, Entry] = {}
        self.removed: list[str] = []
        self.kept = False
        self.new_tombstone: Tombstone | None = None
        self.wake: list[str] = []
        self.stepped_aside: list[str] = []
        self.abandoned: list[str] = []
        """The ids of messages that no worker has accepted in as many offers as a line allows."""

    def hold(
        self,
        op: Acquire | AcquireAlone | Restore,
        fence: int,
        phase: Phase = "running",
        *,
        may_have_copies: bool,
        cost: int = 1,
        part: str = "",
    ) -> None:
        lease = Holder(op.id, op.token, self.now + op.ttl, fence, may_have_copies, phase, cost, part)
        self.holders[op.id] = lease

    def put_behind(self, entry: Entry, flags: int = 0) -> None:
        """Put a copy behind its run. An admitted message has no deadline any more."""
        self.put(entry.moved(offers=flags, state="behind"))

    def advance(self) -> None:
        """Drop expired leases, and offer the free slots: first to entries in line, then to entries aside."""
        self.end_expired()
        self._open_parts()
        self._offer_in_line()
        self._open_parts()
        self._offer_aside()

    def end_expired(self) -> None:
        """Drop expired leases. Only a sweep that recovers drops a lease with a copy of its message behind it.

        After an outage of the store such a holder may live, and needs time to renew: a sweep knows when it
        has had that time. Until then the copy does not run. If no worker sweeps, the lease ends after
        `ABANDONED`.
        """
        dead = set()
        for lease in list(self.holders.values()):
            is_abandoned = self.recovers is None and lease.expiry + ABANDONED <= self.now
            may_stay = self._stays_expired(lease) and not is_abandoned
            if lease.expiry <= self.now and (self.recovers or not may_stay):
                del self.holders[lease.id]
                dead.add(lease.id)
        for entry in sorted(self.entries.values(), key=lambda entry: entry.seq):
            if entry.state == "behind" and entry.id not in self.holders:
                self._join_line(replace(entry, deaths=entry.deaths + (entry.id in dead)))

    def _stays_expired(self, lease: Holder) -> bool:
        return lease.expiry <= self.now and lease.id in self.entries

    def end_run(self, id: str) -> None:
        """Drop the lease of a run that has ended. Its copy joins the line, offered if the broker has it."""
        self.holders.pop(id, None)
        if (copy := self.entries.get(id)) and copy.state == "behind":
            self._join_line(copy, self.now + self.first_offer if copy.is_copy_at_broker else 0)

    def _join_line(self, entry: Entry, offer_until: int = 0) -> None:
        """Put a copy at the end of the line, or at its old place.

        One of a part stands 2, 4, 8 starts behind what offers have reached, after its first, second, third
        death, or is the first that waits for room of its part.
        """
        if not self.parts.fits(entry.part, entry.cost):
            self.put(entry.moved(state="shut"))
            return
        has_parts = bool(entry.part or self.reached)
        keeps_place = entry.offers & KEEPS_PLACE and not has_parts
        seq = entry.seq if keeps_place else self.next_number()
        moved = entry.moved(seq=seq, offer_until=offer_until, offers=int(entry.is_copy_at_broker))
        if has_parts:
            self.parts.entered(entry.part)
            place = self.place_behind(self.rejoined.get(entry.part, 0), 2 ** min(entry.deaths, 20))
            moved, self.rejoined[entry.part] = replace(moved, place=place), place
        if entry.id == self.id and not keeps_place:
            self.ahead = self.before(moved)
        self.put(moved)

    def _open_parts(self) -> None:
        """Let tasks join the line for which their parts have room now."""
        for name in self.parts.with_shut():
            for entry in self.parts.shut(name)[:OFFERED_AT_ONCE]:
                if not self.parts.fits(name, entry.cost):
                    break
                opened = replace(entry, state="waiting", place=self.next_place(name, entry.cost))
                if entry.id == self.id:
                    self.ahead = self.before(opened)
                self.put(opened)

    def next_place(self, part: str, cost: int) -> int:
        """Return the place of a task of a part that joins the line."""
        of = self.parts.entered(part)
        return self.place_behind(of.last, size(self.room(), cost), of.weight)

    def place_behind(self, last: int, cost: int, weight: int = 1) -> int:
        """Return the place of a part's next task. Parts that join at once stand in the order they come in."""
        self.reached = self.reached or self.next_number()
        base, start = max(self.reached, last), A_START * cost // weight
        place = (base // AT_ONCE + start // AT_ONCE) * AT_ONCE
        return min(place + min(self.waiting, AT_ONCE - 1), NEVER - 1)

    def before(self, entry: Entry) -> int:
        head = [other for other in self.head() if other.id != entry.id]
        count = sum(other.turn < entry.turn for other in head)
        return self.waiting if count == len(head) else count

    def next_number(self) -> int:
        """Return a new fence or place in line. Both grow with the time, and by at least one."""
        self.fence = max(self.fence + 1, self.now)
        return self.fence

    @property
    def held(self) -> int:
        return len(self.holders) + self.unread

    @property
    def extra(self) -> int:
        return sum([lease.cost - 1 for lease in self.holders.values()]) + self.unread_extra

    @property
    def most(self) -> int:
        """The units that may be held at once."""
        return self.terms.override.limit if self.terms.override else self.limit

    def room(self) -> Room:
        most, terms = self.most, self.terms
        free = 0 if self.now < terms.opens_at else most - self.held - self.extra
        return ((free, most), *[(rate.free, rate.units) for rate in terms.active])

    def in_turn(self) -> list[Entry]:
        """Return the first in line that have room, up to those that are offered a slot at a time."""
        found = list[Entry]()
        if not self.waiting:
            return found
        room = self.room()
        for entry in self.head()[:OFFERED_AT_ONCE]:
            if not (room := take(room, entry.cost)):
                break
            found.append(entry)
        return found

    def has_room(self, cost: int, ahead: int) -> bool:
        before = [entry.cost for entry in self.head() if entry.id != self.id][:ahead]
        unread = ahead - len(before)
        room = tuple((free - unread, most) for free, most in self.room())
        for units in (*before, cost):
            room = take(room, units)
        return bool(room)

    def part_lets(self, part: str, cost: int) -> bool:
        """Whether its part has room for the operation's task, which passes none that waits for that."""
        if not part:
            return True
        entry = self.entries.get(self.id)
        own = entry.cost if entry and entry.place and entry.part == part else 0
        was_before = own or (entry and entry.state == "aside")
        return bool(was_before or not self.parts.of(part).shut) and self.parts.fits(part, cost, own)

    def _closed_part(self, name: str, cost: int) -> Owner:
        part, now = self.parts.of(name), self.now
        opens = part.opens(now, cost)
        left, (free, most), override = (
            opens - now if opens < NEVER else NEVER,
            part.room(now)[0],
            part.terms.override,
        )
        if override and not override.limit:
            return Owner("", now - override.since, left, phase="paused")
        if now < part.terms.opens_at:
            return Owner("", 0, left, phase="hold")
        is_rate = free >= min(cost, most) and not self.parts.fits(name, cost)
        return Owner("", 0, left, phase="rate" if is_rate else "part")

    def closed(self, cost: int, part: str = "") -> list[Owner]:
        """Return the owner without an id for which a task waits though slots may be free: as next of all."""
        terms, now = self.terms, self.now
        if part and not self.part_lets(part, cost):
            return [self._closed_part(part, cost)]
        if terms.override and not terms.override.limit:
            until = terms.override.until
            return [
                Owner("", now - terms.override.since, until - now if until < NEVER else NEVER, phase="paused")
            ]
        if now < terms.opens_at:
            return [Owner("", 0, terms.opens_at - now, phase="hold")]
        (free, most), *_ = self.room()
        in_turn = self.in_turn()
        before = [entry for entry in in_turn if entry.id != self.id]
        first = [entry.cost for entry in self.head()[len(in_turn) :][:1] if len(before) == len(in_turn)]
        (cost,) = first or [cost]
        opens = self._opens(cost, before)
        is_rate = free >= min(cost, most) and now < opens < NEVER
        return [Owner("", 0, opens - now, phase="rate")] if is_rate else []

    def _opens(self, cost: int, before: list[Entry]) -> int:
        """Return when the rates let a task start after these others."""
        return max(
            (
                rate.opens(self.now, min(cost, rate.units) + sum(min(it.cost, rate.units) for it in before))
                for rate in self.terms.active
            ),
            default=self.now,
        )

    def head(self) -> list[Entry]:
        waiting = [entry for entry in self.entries.values() if entry.state == "waiting"]
        return sorted(waiting, key=lambda entry: entry.turn)

    def has_ahead(self) -> bool:
        """Whether any in line goes before the operation's task: those that join do not."""
        ahead = takewhile(lambda entry: entry.id != self.id, self.head())
        return any(not entry.joins for entry in ahead)

    def owners(self, cost: int | None = None, part: str = "") -> tuple[tuple[Owner, ...], int]:
        """Return the owners that an answer names to such a task, holders first, and the number of others."""
        closed = [] if cost is None else self.closed(cost, part)
        owners = [owner(lease, self.now) for lease in named(self.holders.values(), self.id)]
        in_turn = self.in_turn()
        offered = [entry for entry in in_turn if entry.id != self.id]
        if cost is not None and not (closed or owners or offered):  # it waits for the copy of its own offer
            offered = in_turn
        owners += [Owner(e.id, 0, e.offer_until - self.now, phase="offered") for e in offered]
        return (*closed, *owners[:NAMED]), max(self.held + len(offered) - NAMED, 0)

    def put(self, entry: Entry) -> None:
        """Store a new or changed entry. An entry that is now behind its run is not woken."""
        if before := self.entries.get(entry.id):
            self._count(before, -1)
        self.entries[entry.id] = self.changed[entry.id] = entry
        self._count(entry, 1)
        self.deadline = min(self.deadline, entry.deadline)
        if entry.state == "behind":
            self._do_not_wake(entry.id)

    def is_at_broker(self, id: str) -> bool:
        """Whether both the store, behind its run, and the broker have the message of this id."""
        copy = self.entries.get(id)
        return copy is not None and copy.is_copy_at_broker

    def leave(self, id: str | None = None) -> None:
        id = self.id if id is None else id
        if entry := self.entries.get(id):
            self._count(entry, -1)
            del self.entries[id]
            self.changed.pop(id, None)
            self.removed.append(id)
            self._do_not_wake(id)

    def note_queue(self, queue: str) -> None:
        own = self.entries.get(self.id)
        if self.waiting == (own is not None and own.state == "waiting"):  # no other message waits
            self.queue = queue
        elif self.queue and queue not in (self.queue, ""):
            self.queue = SEVERAL

    def _count(self, entry: Entry, difference: int) -> None:
        """Adjust the counts of the line for an entry that is added (1) or removed (-1)."""
        if entry.state == "shut":
            self.shut += difference
        if entry.state != "waiting":
            return
        own = self.entries.get(self.id)
        self.waiting += difference
        if own is None or entry.turn < own.turn:
            self.ahead += difference

    def _do_not_wake(self, id: str) -> None:
        self.wake = [woken for woken in self.wake if woken != id]

    def _offer_in_line(self) -> None:
        """Offer each free slot to the next entry in line, for twice as long as its last offer.

        An entry that has had all its offers steps aside, unless it is the last in line. In a line of several
        queues it has one: the next message may be in a faster queue. At most as many entries as slots are
        free step aside in one step, since a step reads only the head of the line.
        """
        if not self.waiting:
            return
        room = self.room()
        slots = most = min(*(free for free, _ in room), OFFERED_AT_ONCE)
        in_line, most_offers = self.waiting, 1 if self.queue == SEVERAL else OFFERS_IN_LINE
        for position, entry in enumerate(self.head(), 1):
            left = take(room, entry.cost)
            if slots <= 0 or not left:
                break
            is_last = position == in_line and not self.parts.of(entry.part).shut
            may_step_aside = not is_last and len(self.stepped_aside) < most
            if entry.offer_until <= self.now and entry.offers >= most_offers and may_step_aside:
                self.set_aside(entry)
                self.stepped_aside.append(entry.id)
                if entry.offers >= OFFERS_IN_LINE:
                    self.abandoned.append(entry.id)
                continue
            if entry.offer_until <= self.now:
                self.offer(entry, self.now + min(2**entry.offers, LONGEST_OFFER) * self.first_offer)
                self.note_reached(entry)
            if not entry.joins:  # it most likely takes no slot
                room, slots = left, slots - 1

    def note_reached(self, entry: Entry) -> None:
        """Note where an offered message stands: a task that joins a line with parts stands behind it."""
        if self.reached:
            self.reached = max(self.reached, entry.turn[0])

    def _offer_aside(self) -> None:
        overdue = sorted(
            (entry.offer_until, entry.id)
            for entry in self.entries.values()
            if entry.state == "aside" and entry.offer_until <= self.now
        )
        room = self.room() if overdue else ()
        for _, id in overdue[:OFFERED_AT_ONCE]:
            if not (left := take(room, self.entries[id].cost)):
                continue
            room, offers = left, self.entries[id].offers
            pause = min(2**offers, LONGEST_OFFER) * self.first_offer
            is_final = offers + 1 >= OFFERS_IN_LINE + OFFERS_ASIDE
            self.offer(self.entries[id], NEVER if is_final else self.now + pause)
            if offers + 1 == OFFERS_IN_LINE:
                self.abandoned.append(id)

    def offer(self, entry: Entry, until: int) -> None:
        self.put(replace(entry, offer_until=until, offers=entry.offers + 1))
        self.wake_once(entry.id)

    def wake_once(self, id: str) -> None:
        """Wake a message. A published one has a second copy from now on, and counts as one offer more."""
        entry = self.entries[id]
        if entry.is_published:
            self.put(replace(entry, offers=PUBLISHED + 1))
        if id not in self.wake:
            self.wake.append(id)

    def recall(self, overdue: tuple[Entry, ...]) -> None:
        """Wake each message that has expired in line, but once only: a queue may be without a worker.

        A message that gives up is ended, unless it waits for no other task but for a worker.
        """
        self.end_expired()
        in_turn = {entry.id for entry in self.in_turn()} if overdue else set()
        for entry in overdue:
            if entry.over is not None:
                self.end_wait(entry, entry.over)
            elif entry.gives_up and entry.id in in_turn:
                self.put(replace(entry, deadline=self.now + self.first_offer))
            elif entry.gives_up:
                self.end_wait(entry)
            else:
                self.put(replace(entry, deadline=NEVER))
                self.wake_once(entry.id)

    def replace_waiting(self, newer: str) -> None:
        """End the wait of the messages that a newer one replaces."""
        for id in [entry.id for entry in self.line.last]:
            entry = self.entries[id]
            if entry.replaceable and entry.state == "waiting" and entry.offer_until <= self.now:
                self.end_wait(entry, newer)

    def end_wait(self, entry: Entry, newer: str = "") -> None:
        """Wake a message whose wait is over, again and again, each time after twice as long a pause.

        Each wake adds a copy to a queue without a worker, and none to a broker that is away. So the pauses
        become longer than those between offers, and the wakes do not end.
        """
        offers = entry.offers + 1 if entry.is_over else 1
        deadline = min(self.now + 2 ** (offers - 1) * self.first_offer, NEVER)
        over = entry.moved(offer_until=NEVER, offers=offers, deadline=deadline, over=newer)
        self.put(replace(over, state="aside", part=""))
        self.wake_once(entry.id)

    def shorten_offers(self, only: str | None = None) -> None:
        """Shorten the long first offers of published messages, since another task waits for these slots now.

        A late message now blocks the line no longer than an offered one. `only`: the offer of this id alone.
        """
        longest = self.now + LONGEST_OFFER * self.first_offer
        for entry in self.in_turn():
            if only not in (None, entry.id):
                continue
            # A message of another queue than the next one's has had its time since it was published.
            since = entry.seq if entry.is_published and self.queue == SEVERAL else self.now
            until = max(since + self.first_offer, self.now)
            if entry.offer_until > (until if entry.is_published else longest) and not entry.is_window:
                self.put(replace(entry, offer_until=until))

    def set_aside(self, entry: Entry) -> None:
        """Let others pass a message. One that makes way for a queue is offered any free slot at once."""
        pause = LONGEST_OFFER * self.first_offer if entry.offers >= OFFERS_IN_LINE else 0
        self.put(replace(entry, offer_until=self.now + pause, state="aside", place=0))

    def due(self, part_due: int) -> int | None:
        in_turn = self.in_turn()
        times = [entry.offer_until for entry in in_turn]
        times += [part_due] if part_due != NEVER else []
        aside = [entry for entry in self.entries.values() if entry.state == "aside"]
        others_wait = bool(self.waiting or aside or self.shut)
        # Of many holders it is not known which have copies.
        counts_all = others_wait or self.line.others_behind
        # Requests of other tasks must not put off the sweep that recovers.
        is_sweep = self.recovers is not None
        times += [
            self.now + SWEEP_AGAIN if is_sweep and self._stays_expired(lease) else lease.expiry
            for lease in self.holders.values()
            if counts_all or lease.id in self.entries
        ]
        if counts_all and self.unread_expiry != NEVER:
            times.append(self.unread_expiry)
        if others_wait:
            room = self.room()
            times += [it.offer_until for it in aside if it.offer_until != NEVER and take(room, it.cost)]
            times += self._opens_by_time([*self.head()[len(in_turn) :][:1], *aside], in_turn)
        if self.first_deadline != NEVER:
            times.append(self.first_deadline)
        return min(times, default=None)

    def _opens_by_time(self, behind: list[Entry], in_turn: list[Entry]) -> list[int]:
        """Return when time alone may give room to one of these entries behind the others."""
        override = self.terms.override
        times = [override.until] if override and override.limit < self.limit else []
        if self.now < self.terms.opens_at:
            times.append(self.terms.opens_at)
        elif self.most:
            times += [self._opens(cost, in_turn) for cost in {entry.cost for entry in behind}]
        return [at for at in times if behind and self.now < at < NEVER]

    @property
    def first_deadline(self) -> int:
        waits = self.waiting or self.shut or any(entry.state == "aside" for entry in self.entries.values())
        return self.deadline if waits else NEVER
