"""The least of a store, for the rules of the heart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from celery_exclusive.core.key_state import owner
from celery_exclusive.core.operations import (
    Acquire,
    Answer,
    Ending,
    Enqueue,
    Operation,
    Owner,
    Reap,
    Release,
)
from celery_exclusive.core.records import NAMED, NEVER, SECOND, Document, Entry, Line, Part, overdue
from celery_exclusive.core.step import Transition, step
from celery_exclusive.stores.document_store import Reads

TTL = 30 * SECOND
START = 1_000 * SECOND
TEN_MINUTES = 600 * SECOND


class Key:
    """The least of a store: one key, and a clock that only moves when told."""

    def __init__(self, limit: int = 1) -> None:
        self.now = START
        self.document = Document(limit=limit, epoch="today")
        self.entries: dict[str, Entry] = {}
        self.messages: dict[str, bytes] = {}
        self.tombstones: dict[str, str] = {}
        self.known_parts: dict[str, Part] = {}
        self.last: Transition

    def ask(self, operation: Operation) -> Answer:
        self.last = last = self.look(operation)
        self.document = last.document
        changed = {entry.id: entry for entry in last.entries}
        assert not changed.keys() & set(last.removed)
        self.entries.update(changed)
        idle = [part.name for part in last.parts if part.is_idle(self.now)]
        self.known_parts.update((part.name, part) for part in last.parts)
        self.known_parts = {name: part for name, part in self.known_parts.items() if name not in idle}
        for id in last.removed:
            del self.entries[id], self.messages[id]
        if last.kept:
            assert isinstance(operation, (Acquire, Enqueue))
            assert operation.message is not None
            self.messages[operation.id] = operation.message
        if last.tombstone is not None:
            assert not isinstance(operation, Reap)
            self.tombstones[operation.id] = last.tombstone
        return last.answer

    def look(self, operation: Operation, now: int | None = None, count: int | None = None) -> Transition:
        """What `ask` would answer; `count`: with so many entries of the line."""
        now = self.now if now is None else now
        line = self.line("" if isinstance(operation, Reap) else operation.id, count, now)
        line = Reads.of(operation).with_parts(self.document, line, self, now)
        return step(self.document, line, operation, now)

    def parts(self, names: Collection[str]) -> list[Part]:
        return [self.known_parts[name] for name in names if name in self.known_parts]

    def due_parts(self, count: int) -> list[Part]:
        due = (part for part in self.known_parts.values() if part.due < NEVER)
        return sorted(due, key=lambda part: (part.due, part.name))[:count]

    def shut(self, name: str, count: int) -> list[Entry]:
        shut = (entry for entry in self.entries.values() if entry.part == name and entry.state == "shut")
        return sorted(shut, key=lambda entry: entry.turn)[:count]

    def line(self, id: str, count: int | None = None, now: int = 0) -> Line:
        entries = self.entries.values()
        due, deadline = overdue(entries, now)
        waiting = sorted((e for e in entries if e.state == "waiting"), key=lambda e: e.turn)
        aside = sorted((e for e in entries if e.state == "aside"), key=lambda e: (e.offer_until, e.id))
        own = self.entries.get(id)
        return Line(
            waiting=len(waiting),
            head=tuple(waiting[:count]),
            aside=tuple(aside[:count]),
            behind=tuple(e for e in entries if e.state == "behind"),
            overdue=due,
            deadline=deadline,
            last=tuple(waiting[-NAMED:]),
            entry=own,
            ahead=sum(own is None or entry.turn < own.turn for entry in waiting),
            tombstone=self.tombstones.get(id),
        )

    def acquire(self, id: str, token: str = "", **options: object) -> Answer:
        limit = self.document.limit
        ask = Acquire(
            id, token or id.upper(), TTL, limit, acks_late=True, message=f"message of {id}".encode()
        )
        return self.ask(replace(ask, **options))

    def promoted(self, id: str, token: str = "", **options: object) -> Answer:
        return self.acquire(id, token, **{"promoted": "today", **options})

    def redelivered(self, id: str, token: str = "", **options: object) -> Answer:
        return self.acquire(id, token or f"{id.upper()} again", redelivered=True, **options)

    def release(self, id: str, token: str = "", ending: Ending = "done") -> Answer:
        return self.ask(Release(id, token or id.upper(), ending))

    def owners(self) -> tuple[Owner, ...]:
        """What others are told of its holders."""
        return tuple(owner(holder, self.now) for holder in self.document.holders)

    def reap(self, after: int = 0) -> tuple[str, ...]:
        """Let time pass, let the reaper look, and tell whom it wakes."""
        self.now += after
        self.ask(Reap())
        return self.last.wake

    @property
    def holders(self) -> list[str]:
        return [holder.id for holder in self.document.holders]

    @property
    def in_line(self) -> list[str]:
        return [entry.id for entry in self.line("").head]

    @property
    def aside(self) -> list[str]:
        return [entry.id for entry in self.line("").aside]

    @property
    def behind(self) -> list[str]:
        return [entry.id for entry in self.line("").behind]


def nobody_comes(key: Key, offers: int) -> None:
    """Let so many offers run out."""
    for _ in range(offers):
        assert key.last.due is not None
        key.reap(key.last.due - key.now)
