"""The core: how one operation changes the state of one key.

`step` decides everything about one key. It does no I/O, reads no clock and knows no randomness: stores run it
as compare-and-swap of one document, Redis runs a Lua twin of it, and the tests explore it exhaustively.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_exclusive.core.call_steps import CallSteps
from celery_exclusive.core.key_state import FIRST_OFFER, OFFERS_IN_LINE, PUBLISHED_OFFER
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Answer,
    Applied,
    Charge,
    Drop,
    Enqueue,
    ForceRelease,
    Full,
    GiveUp,
    Granted,
    Held,
    Hold,
    Operation,
    Over,
    Owner,
    Parked,
    Reap,
    Recall,
    Release,
    Remove,
    Renew,
    Requeue,
    Restore,
    SetLimit,
    Stale,
    StandBehind,
)
from celery_exclusive.core.records import (
    AT_BROKER,
    KEEPS_PLACE,
    NEVER,
    PUBLISHED,
    Document,
    Entry,
    Holder,
    Line,
    Part,
    Tombstone,
)
from celery_exclusive.core.room import Override, Terms, take


def step(
    document: Document, line: Line, operation: Operation, now: int, first_offer: int = FIRST_OFFER
) -> Transition:
    """Apply one operation to one key, at the instant `now`. The first offer to a task lasts `first_offer`."""
    state = _Step(document, line, operation.id, now, first_offer)
    method: Callable[[Operation], Answer] = getattr(state, _METHODS[type(operation)])
    return state.transition(method(operation))


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of a step: the new document, the changes of the line, and the ids to republish.

    `kept`: store the operation's message. `tombstone`: of the operation's id. `wake`: publish these messages
    now. `aside`: no worker accepted the offers. `due`: when the reaper must look; None: not before the next
    operation. `parts`: as far as the step knows them.
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
    parts: tuple[Part, ...] = ()


class _Step(CallSteps):
    """The operations, one method each."""

    def acquire(self, op: Acquire) -> Answer:
        before = self.limit, self.terms, self.parts.known.get(op.part)
        self.limit, self.terms = op.limit, self.terms.with_rates(op.rates, self.now)
        self.parts.bring(op)
        self.advance()
        lease, entry = self.holders.get(op.id), self.entries.get(op.id)
        if entry and entry.joins and not op.joins:  # its message as it came does not say so
            op = replace(op, joins=True, message=None)
        if lease and lease.phase != "running":  # a queued lease belongs to its id
            return self._enter(op, lease.fence)
        if lease and lease.token == op.token:
            self._renew_lease(lease, op.ttl)
            return self._granted(op, lease.fence)
        if obsolete := self._obsolete(op, lease, entry):
            return obsolete
        if not lease and (granted := self._take_over(op) or self._grant_free_slot(op, entry)):
            return granted
        if lease:  # the end of this run must end this copy, too, which may come again after it
            self.holders[op.id] = replace(lease, may_have_copies=True)
        if not entry and (refusal := self._refuse(op, is_newcomer=not lease and not op.may_be_in_line)):
            self.limit, self.terms, part = before  # a refused call does not change the terms of the others
            if op.part:
                self.parts.known[op.part] = part or Part(op.part)
            self.advance()
            self.shorten_offers()
            return refusal
        self.kept = op.message is not None and not op.at_once
        if lease:
            entry = entry or Entry(op.id, self.next_number(), cost=op.cost, part=op.part)
            self.put_behind(entry, KEEPS_PLACE if op.order == "published" else 0)
        else:
            self.note_queue(op.queue)
            entry = self._again_in_line(entry, op) if entry else self._new_entry(op)
            self.put(replace(entry, offer_until=0, offers=0, cost=op.cost, joins=op.joins))
            self.shorten_offers()
        self.advance()
        return Parked(0 if lease else self._position(), *self.owners(op.cost, op.part))

    def enqueue(self, op: Enqueue) -> Answer:
        """Give a call its place in line. Workers alone make offers: without any, calls filled the queue."""
        self.limit, self.terms = op.limit, self.terms.with_rates(op.rates, self.now)
        self.parts.bring(op)
        self.end_expired()
        entry = self.entries.get(op.id)
        is_known = entry.state not in ("waiting", "shut") if entry else self.mark is not None
        if is_known or op.id in self.holders:
            return Applied(False)
        if op.waits:
            return self._wait_for_calls(op, op.waits, entry)
        if not entry:
            self.kept = True
            is_its_turn = self.has_room(op.cost, self.ahead) and self.part_lets(op.part, op.cost)
            self.note_queue(op.queue)
            if not is_its_turn:
                self.shorten_offers()
            entry = self._new_entry(op)
            if is_its_turn:
                entry = replace(entry, offer_until=self.now + PUBLISHED_OFFER, offers=PUBLISHED)
                self.note_reached(entry)
            self.put(entry)
        elif entry.is_published:  # its publisher may send it again
            self.put(replace(entry, offers=PUBLISHED + 1))
        is_its_turn = entry.offer_until > self.now
        if is_its_turn:
            return Applied(True)
        return Parked(self._position(), tuple(self.closed(op.cost, op.part)))

    def renew(self, op: Renew) -> Answer:
        lease = self.holders.get(op.id)
        if not lease or lease.token != op.token:
            return Applied(False)
        self._renew_lease(lease, op.ttl)
        return Applied(True)

    def release(self, op: Release) -> Answer:
        self.advance()
        lease = self.holders.get(op.id)
        is_own = lease is not None and lease.belongs_to(op.token)
        may_come_again = lease.may_have_copies if lease else op.id in self.entries or self._was_over()
        if lease and (not is_own or (op.ending == "if_no_copy" and may_come_again)):
            return Applied(False)
        if op.ending == "done":
            self.new_tombstone = Tombstone(of=op.token) if may_come_again else None
        if op.ending == "done" or (lease and op.ending == "if_no_copy"):
            self.leave()  # the message that its run keeps is no copy
        if is_own and op.ending != "open" and "\n" not in op.id and any(it.joins for it in self.head()):
            self.terms = replace(self.terms, done=op.id)
        self.end_run(op.id)
        self.advance()
        return Applied(is_own)

    def requeue(self, op: Requeue) -> Answer:
        self.advance()
        lease = self.holders.get(op.id)
        if not lease or not lease.belongs_to(op.token):
            return Applied(False)
        if op.id not in self.entries and (self.tombstone is None or self.tombstone.kind == "begun"):
            self._renew_lease(replace(lease, phase="again"), op.ttl)
            return Applied(True)
        self.end_run(op.id)
        self.advance()
        return Applied(True)

    def recall_one(self, op: Recall) -> Answer:
        self.advance()
        self.shorten_offers()
        entry = self.entries.get(op.id)
        if not entry or entry.state == "behind":
            return Applied(False)
        if entry.state in ("aside", "shut"):
            self.wake_once(op.id)
        elif entry.offer_until <= self.now:  # else the message is on its way
            self.offer(entry, self.now + self.first_offer)
        return Applied(True)

    def stand_behind(self, op: StandBehind) -> Answer:
        """Like a call that joins the line, this makes no offers: the next sweep does."""
        self.end_expired()
        self.shorten_offers(op.id)  # no other offer keeps this message from running
        entry = self.entries.get(op.id)
        return Applied(entry is not None and entry.is_over)

    def remove(self, op: Remove) -> Answer:
        entry = self.entries.get(op.id)
        found = entry is not None
        if entry and op.ending == "aside":
            is_aside = entry.state == "aside" and entry.offers >= OFFERS_IN_LINE
            found = not (is_aside or entry.state == "behind" or entry.is_over)
            if found:
                self.set_aside(replace(entry, offers=OFFERS_IN_LINE))
        elif op.ending != "aside":
            if found or op.ending == "superseded":
                self.new_tombstone = Tombstone("begun" if op.ending == "open" else "done")
            self.leave()
        self.advance()
        return Applied(found)

    def drop_one(self, op: Drop) -> Answer:
        entry = self.entries.get(op.id)
        if not entry or entry.state == "behind":
            return Applied(not entry and self.tombstone == Tombstone(of=op.token))
        self.leave()
        self.new_tombstone = Tombstone(of=op.token)
        return Applied(True)

    def force_release(self, _: ForceRelease) -> Answer:
        self.end_expired()
        lease, copy = self.holders.pop(self.id, None), self.entries.get(self.id)
        if lease and lease.expiry > self.now and copy and copy.offers & AT_BROKER:
            self.leave()
        self.advance()
        return Applied(lease is not None)

    def restore(self, op: Restore) -> Answer:
        """Restore a lease past the line and its terms: a body that runs goes before an offer, and a pause."""
        self.end_expired()
        lease = self.holders.get(op.id)
        free, most = op.limit - self.held - self.extra, self.parts.brought(op).limit
        room = (free, op.limit), (most - self.parts.of(op.part).held, most)
        is_known = lease or op.id in self.entries or self.tombstone is not None
        if is_known or not take(room, op.cost):
            return Applied(lease is not None and lease.token == op.token)
        self.limit, self.terms = op.limit, self.terms.with_rates(op.rates, self.now)
        self.parts.bring(op)
        self._count_start(op)
        self.hold(op, self.next_number(), may_have_copies=True, cost=op.cost, part=op.part)
        return Applied(True)

    def set_limit(self, op: SetLimit) -> Answer:
        until = NEVER if op.lasts is None else self.now + op.lasts
        override = None if op.limit is None else Override(op.limit, until, self.now, op.by, op.reason)
        terms = self.parts.of(op.part).terms if op.part else self.terms
        found = override is not None or terms.override is not None
        self._set_terms(op.part, replace(terms, override=override))
        self.advance()
        self.shorten_offers()
        return Applied(found)

    def hold_key(self, op: Hold) -> Answer:
        lease = self.holders.get(op.id)
        if op.id and (not lease or lease.token != op.token):
            return Applied(False)
        terms = self.parts.of(op.part).terms if op.part else self.terms
        found = op.lasts > 0 or terms.opens_at > 0
        opens_at = max(terms.opens_at, self.now + op.lasts) if op.lasts else 0
        self._set_terms(op.part, replace(terms, opens_at=opens_at))
        self.advance()
        return Applied(found)

    def charge(self, op: Charge) -> Answer:
        lease = self.holders.get(op.id)
        is_own = lease is not None and lease.token == op.token
        for part in {"", lease.part} if lease and is_own else ():
            terms = self.parts.of(part).terms if part else self.terms
            self._set_terms(part, terms.charged(self.now, op.units))
        return Applied(is_own)

    def _set_terms(self, part: str, terms: Terms) -> None:
        if part:
            self.parts.set_terms(part, terms)
        else:
            self.terms = terms

    def _count_start(self, op: Acquire | Restore) -> None:
        self.terms = self.terms.started(self.now, op.cost)
        if op.part:
            self.parts.set_terms(op.part, self.parts.of(op.part).terms.started(self.now, op.cost))

    def _position(self) -> int:
        """Return the position of the operation's message: one that is shut stands behind all of its part."""
        entry = self.entries[self.id]
        return self.waiting + self.parts.of(entry.part).shut if entry.state == "shut" else self.ahead + 1

    def reap(self, op: Reap) -> Answer:
        self.recovers = self.now <= op.recovers_until
        self.deadline = self.line.deadline
        self.recall(self.line.overdue)
        self.advance()
        return Applied(True)

    def transition(self, answer: Answer) -> Transition:
        terms, parts, reached = self.terms, self.parts.changed(), self.reached if self.waiting else 0
        counts = {
            "extra": self.extra,
            "reached": reached,
            "shut": self.shut,
            "done": terms.done if self.waiting or self.held else "",
            "part_due": min(self.line.parts_due, *(part.due for part in parts), NEVER),
        }
        if any(getattr(terms, name) != value for name, value in counts.items()):
            terms = replace(terms, **counts)  # type: ignore[arg-type]
        return Transition(
            document=Document(
                self.limit,
                self.fence,
                tuple(self.holders.values()),
                self.epoch,
                self.first_deadline,
                self.unread,
                self.unread_expiry,
                self.queue if self.waiting else "",
                terms,
            ),
            answer=answer,
            entries=tuple(self.changed.values()),
            removed=tuple(self.removed),
            kept=self.kept,
            tombstone=self.new_tombstone.text if self.new_tombstone else None,
            wake=tuple(self.wake),
            aside=tuple(
                id for id in self.abandoned if id in self.entries and self.entries[id].state == "aside"
            ),
            due=self.due(terms.part_due),
            parts=parts,
        )

    def _take_over(self, op: Acquire) -> Answer | None:
        """Grant the lease of a message that has not begun. None: no such message holds the key."""
        id, phase = op.takes_over or ("", None)
        lease = self.holders.get(id)
        if not lease or lease.phase != phase or phase == "running":
            return None
        del self.holders[id]
        granted = self._enter(op, lease.fence)
        self.advance()
        return granted

    def _grant_free_slot(self, op: Acquire, entry: Entry | None) -> Answer | None:
        """Grant a free slot, if there is one behind the line. An id aside may get any slot.

        A message whose lease expired in the queue goes before those that join it.
        After a death only the copy of the offer brings the number of deaths along: an older one waits for it.
        """
        is_aside = entry is not None and entry.state == "aside"
        is_older = entry is not None and entry.deaths > 0 and not self._is_of_offer(op)
        is_first = op.order == "any" or is_aside or not (op.joins or self.has_ahead())
        ahead = 0 if is_first else self.ahead
        is_shut = entry is not None and entry.state == "shut"
        if is_shut or (is_older and not is_aside) or not self.has_room(op.cost, ahead):
            return None
        if not self.part_lets(op.part, op.cost):
            return None
        self._count_start(op)
        return self._enter(op, self.next_number())

    def _enter(self, op: Acquire, fence: int) -> Answer:
        """Grant the lease. With late acknowledgement the message stays behind the run until the run ends."""
        entry, lease = self.entries.get(op.id), self.holders.get(op.id)
        is_only_copy = entry is not None and entry.is_published and op.promoted and not op.redelivered
        is_copied = op.may_be_in_line or entry is not None or (lease is not None and lease.may_have_copies)
        may_have_copies = is_copied and not is_only_copy
        self.hold(op, fence, may_have_copies=may_have_copies, cost=op.cost, part=op.part)
        keeps_message = op.recovers and op.message is not None
        if keeps_message or (entry and op.acks_late):
            self.kept = keeps_message
            offers = AT_BROKER + (KEEPS_PLACE if op.order == "published" else 0)
            self.put_behind(entry or Entry(op.id, fence, cost=op.cost, part=op.part), offers)
        elif entry:
            self.leave()
            self.new_tombstone = Tombstone("begun")
        if is_only_copy:  # a repetition of the request that has sent it may still come
            self.new_tombstone = Tombstone("sent")
        return self._granted(op, fence)

    def _granted(self, op: Acquire, fence: int) -> Granted:
        if self.terms.done and not op.joins:
            self.terms = replace(self.terms, done="")
        return Granted(fence, self.terms.done)

    def _is_of_offer(self, op: Acquire) -> bool:
        """Whether this is the first delivery of a copy that an offer of this key has published."""
        return op.promoted == self.epoch and not op.redelivered

    def _is_stale(self, op: Acquire) -> bool:
        """Whether this delivery is obsolete, since another copy of its message runs or has finished.

        its id is...        new message          redelivered   copy of an offer
        running             no                   no            yes, if its entry or tombstone shows that
                                                               the offer was accepted
        in line or unknown  no                   no            no
        begun               no                   no            yes: with early acknowledgement it begins
                                                               again by a redelivery only
        finished            if it finished       yes           yes
                            by this delivery
        """
        is_of_offer, has_entry = self._is_of_offer(op), op.id in self.entries
        if op.id in self.holders:
            return is_of_offer and (has_entry or self.tombstone is not None)
        if has_entry or self.tombstone is None:
            return False
        if self.tombstone.kind == "begun":
            return is_of_offer
        return op.may_be_in_line or self.tombstone == Tombstone(of=op.token)

    def _obsolete(self, op: Acquire, lease: Holder | None, entry: Entry | None) -> Over | Stale | None:
        """Return the answer to a delivery whose message waits, runs or has finished as another copy."""
        if not lease and (answer := self._end_of_wait(op, entry)):
            return answer
        return Stale() if self._is_stale(op) else None

    def _was_over(self) -> bool:
        """Whether a delivery has ended the wait, and no release says that it has ended the task."""
        return self.tombstone is not None and self.tombstone.kind == "over"

    def _end_of_wait(self, op: Acquire, entry: Entry | None) -> Over | Stale | None:
        """Return the answer to a delivery whose wait is over. None: it waits, or is stale.

        Only a copy that the store has published ends the wait. It gets the same answer when it comes again,
        since its worker may have died before it has ended the task, until a release says that it has.
        """
        if entry and entry.over is not None:
            if op.promoted is None:
                return Stale()
            newer = entry.over
            self.leave()
            self.new_tombstone = Tombstone("over", newer)
        elif op.promoted is not None and not self._is_of_offer(op) and self.tombstone and self._was_over():
            newer = self.tombstone.of
        else:
            return None
        return Over(newer, *self.owners())

    def _new_entry(self, op: Acquire | Enqueue) -> Entry:
        """Return the entry of a message that joins the line. Messages that it replaces wait no longer."""
        if op.replaces:
            self.replace_waiting(op.id)
        deadline = self._deadline_of(op)
        gives_up_at = NEVER if op.gives_up_in is None else self.now + op.gives_up_in
        entry = Entry(
            op.id,
            self.next_number(),
            deadline=min(deadline, gives_up_at),
            gives_up=gives_up_at < deadline,
            replaceable=op.replaces,
            cost=op.cost,
        )
        return self._in_part(entry, op)

    def _again_in_line(self, entry: Entry, op: Acquire) -> Entry:
        """Return the entry of a message that waits on, at a new place if it was aside or has another part.

        Without room in its part it becomes the first that waits for that.
        """
        if not entry.gives_up:
            entry = replace(entry, deadline=self._deadline_of(op))
        if entry.offers:  # newer calls may have passed it: it is none to these
            entry = replace(entry, replaceable=False)
        if entry.state == "aside" or entry.part != op.part:
            return self._in_part(entry, op)
        if entry.state == "waiting" and not self.part_lets(op.part, op.cost):
            return replace(entry, state="shut", place=0)
        return entry

    def _in_part(self, entry: Entry, op: Acquire | Enqueue) -> Entry:
        """Give an entry that joins the line its place, if its key has parts and its part has room."""
        entry = replace(entry, part=op.part, state="waiting", place=0)
        if not self.part_lets(op.part, op.cost):
            return replace(entry, state="shut")
        if op.part or self.reached:
            entry = replace(entry, place=self.next_place(op.part, op.cost))
            self.ahead = self.before(entry)
        return entry

    def _wait_for_calls(self, op: Enqueue, waits: tuple[int, int], entry: Entry | None) -> Answer:
        """Let a call open a window, or replace the message of the window that it has opened."""
        read = {id: self.entries.get(id) for id in (*(entry.id for entry in self.line.head), op.id)}
        window = next((it for it in read.values() if it and it.is_window), None)
        if window and window.id != op.id:
            left = max(window.offer_until - self.now, 0)
            return Held((Owner(window.id, 0, left, phase="offered"),))
        if entry and not window:  # its message was published
            return Applied(False)
        self.kept = True
        entry = entry or Entry(op.id, self.next_number(), cost=op.cost)
        until = min(self.now + waits[0], entry.seq + waits[1])
        self.put(replace(entry, offer_until=until))
        return Parked(self.ahead + 1, ())

    def _refuse(self, op: Acquire, *, is_newcomer: bool) -> Answer | None:
        """Return the answer to a delivery that must not be parked. None: park it."""
        if op.message is None or op.at_once:
            return Held(*self.owners(op.cost, op.part))
        waiting = self.waiting + self.shut
        if is_newcomer and op.max_waiting is not None and waiting >= op.max_waiting:
            return Full(waiting, *self.owners(op.cost, op.part))
        return None

    def _deadline_of(self, op: Acquire | Enqueue) -> int:
        """Return when the message expires. One that was in line before is not recalled again at once."""
        if op.expires_in is None:
            return NEVER
        soonest = self.first_offer if op.id in self.entries else 0
        return self.now + max(op.expires_in, soonest)

    def _renew_lease(self, lease: Holder, ttl: int) -> None:
        self.holders[lease.id] = replace(lease, expiry=max(lease.expiry, self.now + ttl))


_METHODS: dict[type[Operation], str] = {
    Acquire: "acquire",
    AcquireAlone: "acquire_alone",
    Enqueue: "enqueue",
    Renew: "renew",
    Release: "release",
    Requeue: "requeue",
    GiveUp: "give_up",
    Remove: "remove",
    Recall: "recall_one",
    StandBehind: "stand_behind",
    Drop: "drop_one",
    ForceRelease: "force_release",
    Restore: "restore",
    SetLimit: "set_limit",
    Hold: "hold_key",
    Charge: "charge",
    Reap: "reap",
}
