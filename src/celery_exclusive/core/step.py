"""The heart: what becomes of a key when somebody asks something of it.

`step` is the whole policy of a lock. It does no I/O, reads no clock and knows no randomness: stores run it
as compare-and-swap of one document, Redis runs a Lua twin of it, and the tests explore it exhaustively.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_exclusive.core.document import NEVER, SECOND, Document, Entry, Holder, Line
from celery_exclusive.core.operations import (
    Acquire,
    Answer,
    Break,
    Done,
    Full,
    Granted,
    Held,
    Operation,
    Own,
    Parked,
    Reap,
    Release,
    Remove,
    Renew,
    Restore,
    Rival,
    Stale,
)

OFFER = 5 * SECOND
"""How long the first offer lasts; each further one lasts twice as long."""
LONGEST_OFFER = 120
"""The longest offer, and the pause between those to an entry aside, in first offers: 10 minutes."""
OFFERS_IN_LINE = 8
OFFERS_ASIDE = 64


@dataclass(frozen=True, slots=True)
class Transition:
    """What a step comes to: the new document, what changes in the line, whom to wake.

    `entries` are new or changed; `removed` leave with their messages; `kept` says that the operation's
    message is to be stored, a `tombstone` that its id is finished, by the delivery of this token. The
    messages of `wake` must be published now; nobody took those of `aside`. At `due` the reaper must look
    again, None: when somebody else does.
    """

    document: Document
    answer: Answer
    entries: tuple[Entry, ...] = ()
    removed: tuple[str, ...] = ()
    kept: bool = False
    tombstone: str | None = None
    wake: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    due: int | None = None


def step(document: Document, line: Line, operation: Operation, now: int, offer: int = OFFER) -> Transition:
    """Answer one operation on one key, all of it at the instant `now`."""
    state = _State(document, line, operation, now, offer)
    if isinstance(operation, Acquire):
        answer = state.acquire(operation)
    elif isinstance(operation, Own):
        answer = state.own(operation)
    elif isinstance(operation, Renew):
        answer = state.renew(operation)
    elif isinstance(operation, Release):
        answer = state.release(operation)
    elif isinstance(operation, Remove):
        answer = state.remove(operation)
    elif isinstance(operation, Break):
        answer = state.break_()
    elif isinstance(operation, Restore):
        answer = state.restore(operation)
    else:
        answer = state.reap()
    return state.transition(answer)


def rival(lease: Holder, now: int) -> Rival:
    """What others are told of a lease."""
    return Rival(lease.id, max(now - lease.fence, 0), lease.expiry - now, lease.fence, lease.phase)


class _State:
    """A document and its line while a step works on them."""

    def __init__(self, document: Document, line: Line, operation: Operation, now: int, offer: int) -> None:
        self.id = "" if isinstance(operation, Reap) else operation.id
        self.now = now
        self.offer = offer
        self.epoch = document.epoch
        self.limit = document.limit
        self.fence = document.fence
        self.holders = {holder.id: holder for holder in document.holders}
        self.entries = {entry.id: entry for entry in (*line.head, *line.aside)}
        if line.own:
            self.entries[self.id] = line.own
        self.waiting = line.waiting
        self.ahead = line.ahead
        self.finished = line.tombstone
        self.changed: dict[str, Entry] = {}
        self.removed: list[str] = []
        self.kept = False
        self.tombstone: str | None = None
        self.wake: list[str] = []
        self.aside: list[str] = []

    def acquire(self, op: Acquire) -> Answer:
        before, self.limit = self.limit, op.limit
        self.settle()
        lease, entry = self.holders.get(op.id), self.entries.get(op.id)
        promoted = op.promoted == self.epoch and not op.redelivered
        redelivered = not promoted and (op.redelivered or op.promoted is not None)
        if lease and lease.token == op.token:
            self._extend(lease, op.ttl)
            return Granted(lease.fence)
        if promoted and (lease or not entry):
            return Stale()
        comes_late = self.finished is not None and (redelivered or self.finished == op.token)
        if comes_late and not lease and not entry:
            return Stale()
        if not lease and self._has_room(entry):
            if entry and entry.redelivered:
                self._stand_behind(entry)
            else:
                self._leave()
            fence = self._tick()
            self.holders[op.id] = Holder(
                op.id, op.token, self.now + op.ttl, fence, bool(entry) or redelivered
            )
            return Granted(fence)
        if not entry and (refusal := self._refuse(op, redelivered=redelivered)):
            self.limit = before  # who only asked does not change what the others may do
            self.settle()
            return refusal
        self.kept = op.message is not None
        if not entry or entry.aside:
            self.waiting += 1
        seq = entry.seq if entry else self._tick()
        self._put(Entry(op.id, seq, redelivered=redelivered or bool(entry and entry.redelivered)))
        self.settle()
        return Parked(self.ahead + 1, self._rivals())

    def own(self, op: Own) -> Answer:
        self._drop_dead()
        id, token = op.former or ("", "")
        former = self.holders.get(id)
        lease = self.holders.get(op.id) or (former if former and former.is_of(token) else None)
        if self.holders and not lease:
            return Held(self._rivals())
        fence = lease.fence if lease else self._tick()
        own = Holder(op.id, op.token, self.now + op.ttl, fence, phase=op.phase)
        others = [holder for holder in self.holders.values() if holder is not lease]
        self.holders = {holder.id: holder for holder in sorted([*others, own], key=lambda h: h.fence)}
        return Granted(fence)

    def renew(self, op: Renew) -> Answer:
        lease = self.holders.get(op.id)
        if not lease or lease.expiry <= self.now:
            return Done(False)
        if op.token not in (None, lease.token) and (op.phase is None or lease.phase == "running"):
            return Done(False)
        self._extend(lease if op.phase is None else replace(lease, phase=op.phase), op.ttl)
        return Done(True)

    def release(self, op: Release) -> Answer:
        self.settle()
        lease = self.holders.get(op.id)
        if not lease or not lease.is_of(op.token):
            return Done(False)
        del self.holders[op.id]
        if op.done:
            self.tombstone = op.token if lease.waited or op.id in self.entries else None
            self._leave()
        self.settle()
        return Done(True)

    def remove(self, op: Remove) -> Answer:
        found = self.id in self.entries
        self.tombstone = "" if found and op.done else None
        self._leave()
        self.settle()
        return Done(found)

    def break_(self) -> Answer:
        self.settle()
        found = self.holders.pop(self.id, None) is not None
        self.settle()
        return Done(found)

    def restore(self, op: Restore) -> Answer:
        """Those in line are not looked at: an offer to one of them is worth less than a body that runs."""
        self._drop_dead()
        lease = self.holders.get(op.id)
        if lease or op.id in self.entries or self.finished is not None or len(self.holders) >= op.limit:
            return Done(lease is not None and lease.token == op.token)
        self.limit = op.limit
        self.holders[op.id] = Holder(op.id, op.token, self.now + op.ttl, self._tick(), waited=True)
        return Done(True)

    def reap(self) -> Answer:
        self.settle()
        return Done(True)

    def settle(self) -> None:
        """Drop dead leases and hold the free places open for the first in line."""
        self._drop_dead()
        free = places = self.limit - len(self.holders)
        waiting = self._waiting()
        for position, entry in enumerate(waiting, 1):
            if places <= 0:
                break
            if entry.offer_until <= self.now:
                others_wait = position < len(waiting)
                if entry.offers >= OFFERS_IN_LINE and others_wait and len(self.aside) < self.limit:
                    self._step_aside(entry)
                    continue
                self._offer(entry, self.now + min(2**entry.offers, LONGEST_OFFER) * self.offer)
            places -= 1
        overdue = sorted(
            (entry.offer_until, entry.id)
            for entry in self.entries.values()
            if entry.aside and entry.offer_until <= self.now
        )
        for _, id in overdue[: max(free, 0)]:
            last = self.entries[id].offers + 1 >= OFFERS_IN_LINE + OFFERS_ASIDE
            self._offer(self.entries[id], NEVER if last else self.now + LONGEST_OFFER * self.offer)

    def transition(self, answer: Answer) -> Transition:
        return Transition(
            document=Document(self.limit, self.fence, tuple(self.holders.values()), self.epoch),
            answer=answer,
            entries=tuple(self.changed.values()),
            removed=tuple(self.removed),
            kept=self.kept,
            tombstone=self.tombstone,
            wake=tuple(self.wake),
            aside=tuple(id for id in self.aside if id in self.entries and self.entries[id].aside),
            due=self._due(),
        )

    def _drop_dead(self) -> None:
        self.holders = {id: lease for id, lease in self.holders.items() if lease.expiry > self.now}

    def _tick(self) -> int:
        self.fence = max(self.fence + 1, self.now)
        return self.fence

    def _waiting(self) -> list[Entry]:
        """The head of the line, without copies that stand behind their own run."""
        waiting = [e for e in self.entries.values() if not e.aside and e.id not in self.holders]
        return sorted(waiting, key=lambda entry: entry.seq)

    def _has_room(self, entry: Entry | None) -> bool:
        """A newcomer stands behind everybody; one that steps back in from aside takes any free place."""
        if entry and entry.aside:
            return len(self.holders) < self.limit
        ahead = sum(not entry or other.seq < entry.seq for other in self._waiting())
        return len(self.holders) + ahead < self.limit

    def _refuse(self, op: Acquire, *, redelivered: bool) -> Answer | None:
        """What a newcomer is told that must not be parked."""
        if op.message is None:
            return Held(self._rivals())
        if not redelivered and op.max_waiting is not None and self.waiting >= op.max_waiting:
            return Full(self.waiting, self._rivals())
        return None

    def _rivals(self) -> tuple[Rival, ...]:
        leases = sorted(self.holders.values(), key=lambda lease: lease.fence)
        rivals = [rival(lease, self.now) for lease in leases]
        invited = self._waiting()[: max(self.limit - len(leases), 0)]
        rivals += [
            Rival(e.id, 0, e.offer_until - self.now, phase="queued") for e in invited if e.id != self.id
        ]
        return tuple(rivals)

    def _extend(self, lease: Holder, ttl: int) -> None:
        self.holders[lease.id] = replace(lease, expiry=max(lease.expiry, self.now + ttl))

    def _put(self, entry: Entry) -> None:
        self.entries[entry.id] = self.changed[entry.id] = entry

    def _leave(self) -> None:
        """The operation's id leaves the line."""
        entry = self.entries.pop(self.id, None)
        if entry:
            self.waiting -= not entry.aside
            self.changed.pop(self.id, None)
            self.removed.append(self.id)
            self.wake = [id for id in self.wake if id != self.id]

    def _stand_behind(self, entry: Entry) -> None:
        """The operation's id gets its place, and its copy stays in line behind its run."""
        self.waiting += entry.aside
        self._put(Entry(entry.id, entry.seq, redelivered=True))
        self.wake = [id for id in self.wake if id != entry.id]

    def _offer(self, entry: Entry, until: int) -> None:
        self._put(replace(entry, offer_until=until, offers=entry.offers + 1))
        self.wake.append(entry.id)

    def _step_aside(self, entry: Entry) -> None:
        own = self.entries.get(self.id)
        self.ahead -= own is None or entry.seq < own.seq
        self.waiting -= 1
        pause = self.now + LONGEST_OFFER * self.offer
        self._put(replace(entry, offer_until=pause, offers=OFFERS_IN_LINE, aside=True))
        self.aside.append(entry.id)

    def _due(self) -> int | None:
        times = [entry.offer_until for entry in self._waiting()[: max(self.limit - len(self.holders), 0)]]
        aside = [entry.offer_until for entry in self.entries.values() if entry.aside]
        if self.waiting or aside:
            times += [lease.expiry for lease in self.holders.values()]
        if len(self.holders) < self.limit:
            times += [until for until in aside if until != NEVER]
        return min(times, default=None)
