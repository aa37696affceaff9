"""The base of stores that load and compare-and-swap a document of each key, and run `step` themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from heapq import nsmallest

from celery_exclusive.core.key_state import named, owner, waiting
from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Enqueue,
    Hold,
    Operation,
    Owner,
    Reap,
    Renew,
    Restore,
    SetLimit,
    ids_of,
)
from celery_exclusive.core.parts import Source, with_parts
from celery_exclusive.core.records import (
    NAMED,
    NEVER,
    SECOND,
    SENT,
    SENT_LIFE,
    WOKEN_AT_ONCE,
    Document,
    Entry,
    Holder,
    Line,
    Part,
    reach,
)
from celery_exclusive.core.room import Rate, Rates, Terms
from celery_exclusive.core.step import Transition, step
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import (
    TASKS_PER_PAGE,
    Capabilities,
    Cursor,
    KeyInLine,
    Page,
    Place,
    Reply,
    Snapshot,
    Times,
    Wake,
    page_of,
)
from celery_exclusive.stores.text import to_bytes
from celery_exclusive.stores.workers import WorkerRecord

CLOCK_MARGIN = 60_000_000
"""Microseconds for which a tombstone is kept beyond its life, in case the clock is set back."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The fields of an operation that decide how much of a key a step reads.

    * `ids`: of leases; the first is the operation's own. `limit`, `rates`: what the operation brings.
    * `brings`: the part of its task, with the terms that this has. `changes`: it may change these at will.
    * `replaces`: it reads the end of the line.
    * `sweeps`: a sweep reads the messages that expire, and counts anew what others may have deleted.
    """

    ids: tuple[str, ...] = ()
    limit: int = 1
    rates: Rates | None = None
    brings: Part | None = None
    changes: bool = False
    replaces: bool = False
    sweeps: bool = False

    @classmethod
    def of(cls, operation: Operation) -> Reads:
        op = operation
        if isinstance(op, (Acquire, Enqueue, Restore)):
            terms = Terms(tuple(Rate(*rate) for rate in op.part_rates))
            replaces, part = getattr(op, "replaces", False), Part(op.part, limit=op.part_limit, terms=terms)
            return cls(ids_of(op), op.limit, op.rates, part, replaces=replaces)
        if isinstance(op, (SetLimit, Hold)):
            part = Part(op.part)
            return cls(
                limit=getattr(op, "limit", None) or 1, ids=ids_of(op), brings=part, changes=bool(op.part)
            )
        return cls(sweeps=True) if isinstance(op, Reap) else cls(ids_of(op))

    @property
    def id(self) -> str:
        return self.ids[0] if self.ids else ""

    def reach(self, document: Document, now: int) -> int:
        """Return how many entries in line, and aside, a step may have to read."""
        return reach(document, self.limit, self.ids, now, self.rates)

    def with_parts(self, document: Document, line: Line, source: Source, now: int) -> Line:
        """Return the line with the parts that a step reads."""
        brings, sweeps, changes = self.brings, self.sweeps, self.changes
        return with_parts(document, line, source, now, self.ids, brings, sweeps=sweeps, changes=changes)


NOTHING = Reads()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The data of a key at the instant `now` of the store's clock; `version` changes with every swap.

    `aside` counts all entries aside, of which the line has only some. A store that gives the stored `due`
    time need not swap a change that changes nothing. `last`: of a key whose holders have rows of their own,
    when the last of their leases ends, or later; `NEVER`: it is not known.
    """

    version: int
    now: int
    document: Document
    line: Line
    aside: int = 0
    due: int | None = None
    last: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """The data that a swap must store: a transition, and the operation's id and message."""

    loaded: Loaded
    transition: Transition
    id: str
    message: bytes | None
    tombstone_until: int

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to store."""
        to, was = self.transition, self.loaded
        writes = (
            any(self.parts())
            or to.entries
            or to.removed
            or to.tombstone is not None
            or self.message is not None
        )
        return to.document == was.document and to.due == was.due and not writes

    @property
    def known(self) -> dict[str, Entry]:
        """The loaded entries. A step changes and removes no others."""
        line = self.loaded.line
        own = (line.entry,) if line.entry else ()
        shut = (entry for part in line.parts for entry in part.first)
        loaded = (*line.head, *line.aside, *line.behind, *line.overdue, *line.last, *own, *shut)
        return {entry.id: entry for entry in loaded}

    @property
    def leases(self) -> tuple[list[Holder], list[str]]:
        """The leases that are new or changed, and the ids whose leases have ended."""
        before = {holder.id: holder for holder in self.loaded.document.holders}
        after = {holder.id: holder for holder in self.transition.document.holders}
        changed = [holder for id, holder in after.items() if holder != before.get(id)]
        return changed, [id for id in before if id not in after]

    def parts(self) -> tuple[list[Part], list[str]]:
        """Return the parts that are new or changed, and the names of those that are idle now."""
        before, now = {part.name: replace(part, first=()) for part in self.loaded.line.parts}, self.loaded.now
        changed = [part for part in self.transition.parts if part != before.get(part.name)]
        idle = [part.name for part in changed if part.is_idle(now)]
        return [part for part in changed if part.name not in idle], [name for name in idle if name in before]

    def counts(self) -> tuple[int, int, int]:
        """Return how many entries will be in line, aside, and behind their runs."""
        known, to, line = self.known, self.transition, self.loaded.line
        left = [known[id].state for id in {*to.removed, *(entry.id for entry in to.entries)} if id in known]
        came = [entry.state for entry in to.entries]
        return (
            line.waiting + came.count("waiting") - left.count("waiting"),
            self.loaded.aside + came.count("aside") - left.count("aside"),
            len(line.behind) + line.others_behind + came.count("behind") - left.count("behind"),
        )


def sweep(
    keys: Sequence[str] | None,
    limit: int,
    look_at: Callable[[str], Reply],
    epoch: str,
    time: int,
    next_due: Callable[[], int | None],
) -> Reply:
    """Reap `limit` of these keys, one by one; None: another process reaped recently."""
    replies, size, due = list[Reply](), 0, keys or ()
    for key in due[:limit]:
        if size > WOKEN_AT_ONCE:
            break
        replies.append(look_at(key))
        size += replies[-1].size
    at = next_due() if keys is not None else None
    return Reply(
        Applied(keys is not None),
        tuple(wake for reply in replies for wake in reply.wake),
        tuple(aside for reply in replies for aside in reply.aside),
        epoch,
        more=len(replies) < len(due),
        swept=len(replies),
        unreadable=tuple(pair for reply in replies for pair in reply.unreadable),
        due_in=None if at is None else max(at - time, 0),
        time=time,
    )


def snapshot(loaded: Loaded) -> Snapshot:
    """Return the state of a key as answers show it."""
    document, dead = loaded.document, {entry.id for entry in loaded.line.behind}  # a worker will recover them
    shown = [holder for holder in document.holders if holder.expiry > loaded.now or holder.id in dead]
    holders = tuple(owner(holder, loaded.now) for holder in named(shown))
    others = len(shown) + document.unread - len(holders)
    line = tuple(waiting(entry, loaded.now) for entry in loaded.line.head[:NAMED])
    counts = loaded.line.waiting + document.terms.shut, loaded.aside
    is_used = bool(shown or any(counts))
    terms = document.terms.at(loaded.now).unless_idle(loaded.now, is_used=is_used)
    limit = document.limit if is_used else 1
    return Snapshot(holders, *counts, others=others, line=line, limit=limit, terms=terms, now=loaded.now)


def living(holders: Iterable[Holder], now: int) -> list[Owner]:
    """Return the holders whose leases have not expired."""
    return [owner(holder, now) for holder in holders if holder.expiry > now]


def page_of_line(
    entries: Iterable[Entry], messages: Mapping[str, bytes], now: int, after: Cursor | None, count: int
) -> Page:
    """Return a page of a line, of all entries of the key and the stored messages by their ids."""
    places = ((cursor_of(entry), entry) for entry in entries if entry.state != "behind")
    rest = ((cursor, entry) for cursor, entry in places if not after or cursor.order > after.order)
    first = nsmallest(count + 1, rest, key=lambda found: found[0].order)
    found = [(at, Place(waiting(entry, now), messages.get(entry.id, b""))) for at, entry in first]
    return page_of(found, count)


def cursor_of(entry: Entry) -> Cursor:
    state = shut_in(entry.part) if entry.state == "shut" else entry.state
    return Cursor(state, entry.offer_until if entry.state == "aside" else entry.turn[0], entry.id)


def shut_in(part: str) -> str:
    """Return the state of tasks that wait for room of this part, with its mark."""
    return f"shut{sha1(to_bytes(part), usedforsecurity=False).hexdigest()[:12]}"


class DocumentStore(ABC):
    """A store that runs `step` itself, as compare-and-swap of one document.

    A subclass needs only the abstract methods below; `swap` must be atomic.
    """

    capabilities = Capabilities()

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5 * SECOND, tombstone_ttl: int = 600 * SECOND
    ) -> None:
        self.url = url
        self.prefix = prefix
        self.offer = offer
        self.tombstone_ttl = tombstone_ttl

    @abstractmethod
    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:
        """Return the key's document and its line as `step` reads them, with the data of the own id.

        The document has the leases of all ids. A store that has all holders in one place may return all.
        """

    @abstractmethod
    def swap(self, key: str, version: int, change: Change) -> bool:
        """Store a change if the key still has this version; return whether it had."""

    @abstractmethod
    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored messages of these ids, as far as they are in line."""

    @abstractmethod
    def due(self, limit: int, every: int) -> list[str] | None:
        """Return the keys that are due; None after another call within `every` microseconds."""

    @abstractmethod
    def next_due(self) -> int | None:
        """Return when the next key with a line is due, or was; None: not within `SOON`."""

    @abstractmethod
    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        """Return a page of a key's line."""

    @abstractmethod
    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        """Return up to so many parts of a key, in any order."""

    @abstractmethod
    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the id of each entry that waits."""

    @abstractmethod
    def lines(self) -> Iterator[KeyInLine]:
        """Yield the keys that have entries."""

    @abstractmethod
    def keys_of(self, task_id: str) -> Iterator[str]:
        """Yield the keys that the task with this id holds or waits for."""

    @abstractmethod
    def scan(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that have a holder, a line or terms."""

    def apply(self, key: str, operation: Operation) -> Reply:
        while True:
            loaded = self.load(key, Reads.of(operation))
            if reply := self._carry_out(key, operation, loaded):
                return reply

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> Sequence[bool | None]:
        return [self.apply(key, operation).answer == Applied(True) for key, operation in leases]

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        keys, empty, reap = self.due(limit + 1, every), self.load(""), Reap(recovers_until)
        look_at = lambda key: self.apply(key, reap)  # noqa: E731
        return sweep(keys, limit, look_at, empty.document.epoch, empty.now, self.next_due)

    def forget(self, key: str) -> None:
        raise StoreUnavailable(f"store {self.url} cannot delete the data of lock {key}: delete them by hand")

    def keep_namespace(
        self,
        broker: str,
        life: int,  # noqa: ARG002 - shared stores keep it
        worker: WorkerRecord | None = None,  # noqa: ARG002
        *,
        adopts: bool = False,  # noqa: ARG002
    ) -> str:
        return broker

    def forget_worker(self, worker: WorkerRecord) -> None: ...  # noqa: B027 - it knows none

    def namespace_owner(self, *, adopts: bool = False) -> str:  # noqa: ARG002 - shared stores know it
        return ""

    def workers(self, within: int = 0) -> dict[int, list[WorkerRecord]]:  # noqa: ARG002
        return {}

    def times(self) -> Times:
        return Times(self.load("").now, None)

    def inspect(self, key: str) -> Snapshot:
        return snapshot(self.load(key, Reads(limit=NAMED)))

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        return [self._look(key) for key in keys]

    def holders(self, key: str) -> list[Owner]:
        loaded = self.load(key)
        return living(loaded.document.holders, loaded.now)

    def messages_of(self, tasks: Sequence[tuple[str, str]]) -> list[bytes]:
        found = (self.messages(key, [id]).get(id) for key, id in tasks)
        return [message if isinstance(message, bytes) else b"" for message in found]

    def epoch(self) -> str:
        return self.load("").document.epoch

    def check(self) -> list[str]:
        return []

    def close(self) -> None:  # noqa: B027 - nothing to do is the rule
        """Close nothing, unless a store overrides this."""

    def _look(self, key: str) -> Snapshot:
        try:
            return self.inspect(key)
        except UnreadableKey as error:
            return Snapshot(problem=error.problem)

    def _carry_out(self, key: str, operation: Operation, loaded: Loaded) -> Reply | None:
        """Run the step on the loaded data and swap the result; None if the key has changed since."""
        change = self.change(operation, loaded)
        transition, epoch = change.transition, loaded.document.epoch
        is_unchanged = isinstance(operation, Renew) and transition.answer == Applied(False)
        # Read before the swap: after it another operation may remove a message, or replace it.
        messages = self.messages(key, transition.wake) if transition.wake else {}
        if not (is_unchanged or self.swap(key, loaded.version, change)):
            return None
        aside = tuple((key, id) for id in transition.aside)
        if not transition.wake:
            return Reply(transition.answer, aside=aside)
        waiting = change.counts()[0]
        if change.message is not None:
            messages = {**messages, change.id: change.message}
        entries = change.known | {entry.id: entry for entry in transition.entries}
        woken = (id for id in transition.wake if id in messages)
        wake = tuple(Wake(key, id, messages[id], epoch, waiting, entries[id].deaths) for id in woken)
        return Reply(transition.answer, wake, aside, epoch)

    def change(self, operation: Operation, loaded: Loaded) -> Change:
        """Run the step, and return the change that has to be stored."""
        transition = step(loaded.document, loaded.line, operation, loaded.now, self.offer)
        message = operation.message if isinstance(operation, (Acquire, Enqueue)) and transition.kept else None
        life = SENT_LIFE if transition.tombstone == SENT else self.tombstone_ttl
        return Change(loaded, transition, operation.id, message, loaded.now + life)
