"""memory://: leases within one process, for tests and eager mode."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from secrets import token_hex
from threading import Lock

from celery_exclusive.core import claim
from celery_exclusive.core.operations import Owner
from celery_exclusive.core.records import (
    ENDED_AT_ONCE,
    NAMED,
    NEVER,
    SOON,
    Document,
    Entry,
    Holder,
    Line,
    Part,
    overdue,
    readable,
)
from celery_exclusive.core.room import NO_TERMS, Terms
from celery_exclusive.seams.python import native
from celery_exclusive.stores.base import TASKS_PER_PAGE, Capabilities, Cursor, KeyInLine, Page, Times
from celery_exclusive.stores.document_store import (
    CLOCK_MARGIN,
    NOTHING,
    Change,
    DocumentStore,
    Loaded,
    Reads,
    living,
    page_of_line,
)
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord, by_number


@dataclass(slots=True)
class _Key:
    limit: int = 1
    deadline: int = NEVER
    queue: str = ""
    terms: Terms = NO_TERMS
    version: int = 0
    due: int | None = None
    holders: dict[str, Holder] = field(default_factory=dict)
    ends: list[tuple[int, str]] = field(default_factory=list)
    """The expiry and the id of each holder, in order."""
    entries: dict[str, Entry] = field(default_factory=dict)
    waiting: list[tuple[int, str]] = field(default_factory=list)
    known_parts: dict[str, Part] = field(default_factory=dict)
    messages: dict[str, bytes] = field(default_factory=dict)
    tombstones: dict[str, tuple[int, str]] = field(default_factory=dict)

    def hold(self, lease: Holder) -> None:
        self.let_go(lease.id)
        self.holders[lease.id] = lease
        insort(self.ends, (lease.expiry, lease.id))

    def let_go(self, id: str) -> None:
        if lease := self.holders.pop(id, None):
            del self.ends[bisect_left(self.ends, (lease.expiry, id))]

    def first_holders(self, ids: Sequence[str], now: int) -> list[Holder]:
        """Return at least the holders that a step reads, and the next one."""
        living = bisect_left(self.ends, (now + 1,))
        more = len(ids) + 1
        first = self.ends[: min(living, ENDED_AT_ONCE + more)] + self.ends[living : living + NAMED + 2 + more]
        return [self.holders[id] for id in {*ids, *(id for _, id in first)} if id in self.holders]

    def put(self, entry: Entry) -> None:
        self.drop(entry.id)
        self.entries[entry.id] = entry
        if entry.state == "waiting":
            insort(self.waiting, entry.turn)

    def drop(self, id: str) -> None:
        entry = self.entries.pop(id, None)
        if entry and entry.state == "waiting":
            del self.waiting[bisect_left(self.waiting, entry.turn)]

    def parts(self, names: Collection[str]) -> list[Part]:
        return [self.known_parts[name] for name in names if name in self.known_parts]

    def due_parts(self, count: int) -> list[Part]:
        due = (part for part in self.known_parts.values() if part.due < NEVER)
        return nsmallest(count, due, key=lambda part: (part.due, part.name))

    def shut(self, name: str, count: int) -> list[Entry]:
        shut = (entry for entry in self.entries.values() if entry.part == name and entry.state == "shut")
        return nsmallest(count, shut, key=lambda entry: entry.turn)

    def is_over(self, now: int) -> bool:
        """Whether no lease lives, no task waits, and no terms count."""
        last = self.ends[-1][0] if self.ends else 0
        return not self.entries and max(last, self.terms.last(now)) <= now


@dataclass(slots=True)
class _Memory:
    """The data that all stores of one URL share in this process."""

    # Greenlets share it with the heartbeat's thread; none waits for anything else while it holds it.
    lock: Lock = field(default_factory=native("Lock"))
    keys: dict[str, _Key] = field(default_factory=dict)
    epoch: str = field(default_factory=lambda: token_hex(8))
    fence: int = 0
    version: int = 0
    reaped: int = 0
    workers: dict[bytes, int] = field(default_factory=dict)
    """The records of workers, and until when each is kept."""

    def forget_idle(self, key: str, now: int) -> None:
        """Forget what a key without a lease or a line allows, when it counts no more."""
        kept = self.keys[key]
        if not kept.holders and kept.is_over(now):
            kept.limit, kept.terms, kept.known_parts = 1, NO_TERMS, {}
            if not kept.tombstones:
                del self.keys[key]


_memories: dict[tuple[str, str], _Memory] = {}


class MemoryStore(DocumentStore):
    """Leases in this process's memory; all stores of the same URL and prefix are one.

    `clock` returns the time in microseconds; tests replace it.
    """

    capabilities = Capabilities(one_host=True, one_process=True)

    def __init__(self, url: str, *, prefix: str = "cx", **times: int) -> None:
        super().__init__(url, prefix=prefix, **times)
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1000
        self._memory = _memories.setdefault((url, prefix), _Memory())

    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:
        memory, ids, id = self._memory, reads.ids, reads.id
        with memory.lock:
            now = self.clock()  # a thread may have waited for the lock
            kept = memory.keys.get(key) or _Key(version=memory.version)
            first, held = kept.first_holders(ids, now), len(kept.holders)
            holders, unread, unread_expiry = readable(first, held, ids, now)
            document = Document(
                kept.limit,
                memory.fence,
                holders,
                memory.epoch,
                kept.deadline,
                unread,
                unread_expiry,
                kept.queue,
                kept.terms,
            )
            count = reads.reach(document, now)
            own = kept.entries.get(id)
            until, token = kept.tombstones.get(id, (0, ""))
            entries = kept.entries.values()
            due, deadline = overdue(entries if reads.sweeps else (), now)
            behind = tuple(
                entry
                for holder in holders
                if (entry := kept.entries.get(holder.id)) and entry.state == "behind"
                if held <= NAMED or holder.expiry <= now or holder.id in ids
            )
            aside = sorted((e for e in entries if e.state == "aside"), key=lambda e: (e.offer_until, e.id))
            line = Line(
                waiting=len(kept.waiting),
                head=tuple(kept.entries[id] for _, id in islice(kept.waiting, count)),
                aside=tuple(aside[:count]),
                behind=behind,
                others_behind=len(kept.entries)
                - len(kept.waiting)
                - len(aside)
                - len(behind)
                - kept.terms.shut,
                overdue=due,
                deadline=deadline,
                last=tuple(kept.entries[id] for _, id in kept.waiting[-NAMED:]) if reads.replaces else (),
                entry=own,
                ahead=bisect_left(kept.waiting, own.turn) if own else len(kept.waiting),
                tombstone=token if until > now else None,
            )
            line = reads.with_parts(document, line, kept, now)
            return Loaded(kept.version, now, document, line, len(aside))

    def swap(self, key: str, version: int, change: Change) -> bool:
        memory, transition = self._memory, change.transition
        with memory.lock:
            kept = memory.keys.get(key) or _Key(version=memory.version)
            if kept.version != version:
                return False
            memory.version += 1
            memory.fence = max(memory.fence, transition.document.fence)
            memory.keys[key] = kept
            kept.version = memory.version
            kept.limit, kept.deadline = transition.document.limit, transition.document.deadline
            kept.due, kept.queue = transition.due, transition.document.queue
            kept.terms = transition.document.terms
            parts, idle = change.parts()
            kept.known_parts.update((part.name, part) for part in parts)
            for name in idle:
                del kept.known_parts[name]
            changed, ended = change.leases
            for ended_id in ended:
                kept.let_go(ended_id)
            for lease in changed:
                kept.hold(lease)
            for entry in transition.entries:
                kept.put(entry)
            for id in transition.removed:
                kept.drop(id)
                kept.messages.pop(id, None)
            if change.message is not None:
                kept.messages[change.id] = change.message
            if transition.tombstone is not None:
                kept.tombstones[change.id] = (change.tombstone_until, transition.tombstone)
            memory.forget_idle(key, change.loaded.now)
            return True

    def holders(self, key: str) -> list[Owner]:
        with self._memory.lock:
            kept = self._memory.keys.get(key) or _Key()
            return living(kept.holders.values(), self.clock())

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        with self._memory.lock:
            kept = self._memory.keys.get(key) or _Key()
            return {id: kept.messages[id] for id in ids if id in kept.messages}

    def due(self, limit: int, every: int) -> list[str] | None:
        memory = self._memory
        with memory.lock:
            now = self.clock()
            if memory.reaped <= now < memory.reaped + every:  # not after a clock that went back
                return None
            memory.reaped = now
            for key, kept in list(memory.keys.items()):
                stones = kept.tombstones.items()
                kept.tombstones = {id: stone for id, stone in stones if stone[0] + CLOCK_MARGIN > now}
                if kept.is_over(now):
                    kept.holders, kept.ends = {}, []
                memory.forget_idle(key, now)
            due = sorted((kept.due, key) for key, kept in memory.keys.items() if kept.due is not None)
            return [key for time, key in due[:limit] if time <= now]

    def next_due(self) -> int | None:
        memory = self._memory
        with memory.lock:
            soon = self.clock() + SOON
            due = [kept.due for kept in memory.keys.values() if kept.due is not None and kept.due < soon]
        return min(due, default=None)

    def forget(self, key: str) -> None:
        memory = self._memory
        with memory.lock:
            memory.version += 1
            kept = memory.keys.pop(key, None)
            if kept and kept.tombstones:
                memory.keys[key] = _Key(version=memory.version, tombstones=kept.tombstones)

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        with self._memory.lock:
            kept = self._memory.keys.get(key) or _Key()
            return page_of_line(kept.entries.values(), kept.messages, self.clock(), after, count)

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        with self._memory.lock:
            kept = self._memory.keys.get(key) or _Key()
            return list(islice(kept.known_parts.values(), count))

    def places(self) -> Iterator[tuple[str, str]]:
        with self._memory.lock:
            kept = [(key, entry) for key, it in self._memory.keys.items() for entry in it.entries.values()]
        return ((key, entry.id) for key, entry in kept if entry.state != "behind")

    def lines(self) -> Iterator[KeyInLine]:
        with self._memory.lock:
            now = self.clock()
            found = [
                KeyInLine(
                    key,
                    len(kept.waiting) + kept.terms.shut,
                    sum(entry.state == "aside" for entry in kept.entries.values()),
                    kept.due is not None and kept.due <= now,
                    max(now - kept.waiting[0][0], 0) if kept.waiting else 0,
                )
                for key, kept in self._memory.keys.items()
                if kept.entries
            ]
        return iter(found)

    def keys_of(self, task_id: str) -> Iterator[str]:
        with self._memory.lock:
            ids = {key: {*kept.holders, *kept.entries} for key, kept in self._memory.keys.items()}
        return (key for key, its in ids.items() if task_id in map(claim.task_id, its))

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        if worker:
            with self._memory.lock:
                self._memory.workers[worker.text] = self.clock() + FORGOTTEN_AFTER
        return super().keep_namespace(broker, life, adopts=adopts)

    def forget_worker(self, worker: WorkerRecord) -> None:
        with self._memory.lock:
            self._memory.workers.pop(worker.text, None)

    def workers(self, within: int = FORGOTTEN_AFTER) -> dict[int, list[WorkerRecord]]:
        memory, now = self._memory, self.clock()
        with memory.lock:
            memory.workers = {text: until for text, until in memory.workers.items() if until > now}
            since = now + FORGOTTEN_AFTER - within
            return by_number(text for text, until in memory.workers.items() if until > since)

    def times(self) -> Times:
        with self._memory.lock:
            return Times(self.clock(), self._memory.reaped or None)

    def scan(self, prefix: str = "") -> Iterator[str]:
        with self._memory.lock:
            now, found = self.clock(), self._memory.keys.items()
            keys = [key for key, kept in found if kept.holders or not kept.is_over(now)]
        return (key for key in keys if key.startswith(prefix))

    def clear(self) -> None:
        """Delete everything, like a server that loses its data."""
        with self._memory.lock:
            self._memory.keys.clear()
            self._memory.epoch = token_hex(8)
