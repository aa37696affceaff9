"""One namespace of a database within one transaction: nobody else changes it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import getrandbits
from typing import Any, Protocol

from celery_exclusive.core.operations import Applied, Renew
from celery_exclusive.core.records import SKIP_UNREADABLE, Document, Entry, Line, State, reach
from celery_exclusive.core.step import step
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.document_store import CLOCK_MARGIN, Change, DocumentStore, Loaded
from celery_exclusive.stores.sql import rows, statements
from celery_exclusive.stores.sql.rows import Damaged, Found
from celery_exclusive.stores.text import to_bytes, to_text

_LEASES_AT_ONCE = 500
_ENDED_PER_SWEEP = 5_000
"""A sweep is one transaction, for which all others wait."""
RELEASED = Reply(Applied(True))


class NamespaceGone(StoreUnavailable):
    """Somebody deleted the namespace's row, or all tables."""


class Cursor(Protocol):
    """That of a database driver (DB-API 2.0)."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, statement: str, parameters: Any = ..., /) -> object: ...
    def executemany(self, statement: str, parameters: Any, /) -> object: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(DocumentStore):
    """Does what a store is asked between the beginning and the end of a transaction that the store opened.

    Parameters:
        cursor: of a connection to a database that has the tables and the namespace's row.

    `now` is the instant of it all, in microseconds: the store reads its clock when it has begun.
    """

    now: int

    def __init__(self, cursor: Cursor, url: str, *, prefix: str, offer: int, tombstone_ttl: int) -> None:
        super().__init__(url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)
        self.cursor = cursor
        self.namespace = to_bytes(prefix)

    def load(self, key: str, id: str = "", limit: int = 1) -> Loaded:
        return self._loaded(key, id, limit, self._find(key, id))

    def _find(self, key: str, id: str) -> Found:
        name = to_bytes(key)
        found = Found._make(self._one(statements.FIND, name, name, to_bytes(id), self.namespace))
        found.check()
        return found

    def _loaded(self, key: str, id: str, limit: int, found: Found) -> Loaded:
        tombstone = (
            to_text(found.token) if found.token is not None and (found.until or 0) > self.now else None
        )
        if found.version is None:
            return Loaded(0, self.now, Document(1, found.floor, (), found.epoch), Line(tombstone=tombstone))
        kept_limit, holders = rows.read_document(found.document)
        document = Document(kept_limit, found.last_fence, holders, found.epoch)
        if found.ends is not None:
            return Loaded(found.version, self.now, document, Line(tombstone=tombstone))
        line = self._line(key, id, found, reach(document, limit), tombstone)
        return Loaded(found.version, self.now, document, line, found.aside, found.due)

    def _line(self, key: str, id: str, found: Found, count: int, tombstone: str | None) -> Line:
        def part(state: State, count: int) -> tuple[Entry, ...]:
            part = self._all(statements.LINE_PART, self.namespace, to_bytes(key), state, count)
            return tuple(rows.entry(*row) for row in part)

        head = part("waiting", count) if found.waiting else ()
        aside = part("aside", count) if found.aside else ()
        behind = part("behind", found.behind) if found.behind else ()
        own, ahead = None, found.waiting
        for place, entry in enumerate(head):
            if entry.id == id:
                own, ahead = entry, place
        if not own and id and (found.waiting > len(head) or aside or behind):
            for *row, before in self._all(statements.ENTRY, self.namespace, to_bytes(key), to_bytes(id)):
                own, ahead = rows.entry(*row), before
        return Line(found.waiting, head, aside, behind, own, ahead, tombstone)

    def swap(self, key: str, version: int, change: Change) -> bool:
        if change.is_none:
            return True
        to, document, counts = change.transition, change.transition.document, change.counts()
        end = rows.end(document.holders)
        due, ends = (to.due, None) if any(counts) else (end, end)
        text = rows.write_document(document.limit, document.holders)
        floor = change.loaded.document.fence
        if not self._write(key, version, floor, document.fence, due, ends, *counts, text):
            return False
        self._swap_line(key, change)
        if to.tombstone is not None:
            name = (self.namespace, to_bytes(key), to_bytes(change.id))
            self.cursor.execute(statements.DELETE_TOMBSTONE, name)
            stone = (*name, change.tombstone_until, to_bytes(to.tombstone))
            self.cursor.execute(statements.INSERT_TOMBSTONE, stone)
        return True

    def _write(self, key: str, version: int, floor: int, *values: int | str | None) -> bool:
        """Write a lock's row, from its fence to its document, unless it was changed since it was read."""
        name = (self.namespace, to_bytes(key))
        if version:
            self.cursor.execute(statements.CHANGE_LOCK, (version + 1, *values, *name, version))
        else:
            row = (new_version(), *values, name[1], name[0], floor)
            self.cursor.execute(statements.INSERT_LOCK, row)
        return self.cursor.rowcount > 0

    def _swap_line(self, key: str, change: Change) -> None:
        known = change.known
        for entry in change.transition.entries:
            place = entry.offer_until if entry.state == "aside" else entry.seq
            message = change.message if entry.id == change.id else None
            values = (entry.seq, entry.offer_until, entry.offers, entry.state, place, message)
            statement = statements.CHANGE_ENTRY if entry.id in known else statements.INSERT_ENTRY
            self.cursor.execute(statement, (*values, self.namespace, to_bytes(key), to_bytes(entry.id)))
        for id in change.transition.removed:
            self.cursor.execute(statements.DELETE_ENTRY, (self.namespace, to_bytes(key), to_bytes(id)))

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        statement = statements.repeated(statements.MESSAGES, len(ids))
        found = self._all(statement, self.namespace, to_bytes(key), *map(to_bytes, ids))
        return {to_text(id): message for id, message in found}

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        batches = (leases[at : at + _LEASES_AT_ONCE] for at in range(0, len(leases), _LEASES_AT_ONCE))
        return [is_found for batch in batches for is_found in self._renew(batch)]

    def _renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        """A renewal touches no line: so all of them are read at once, and changed at once."""
        keys = sorted({key for key, _ in leases})
        statement = statements.repeated(statements.RENEWED_LOCKS, len(keys))
        locks = {to_text(row[0]): row for row in self._all(statement, self.namespace, *map(to_bytes, keys))}
        documents = dict.fromkeys(keys, Document())
        for key, (*_, text) in locks.items():
            with suppress(Damaged):  # the others must not lose their leases for it
                limit, holders = rows.read_document(text)
                documents[key] = Document(limit, holders=holders)
        found, renewed = list[bool](), set[str]()
        for key, renewal in leases:
            transition = step(documents[key], Line(), renewal, self.now, self.offer)
            found.append(transition.answer == Applied(True))
            if found[-1]:
                documents[key] = transition.document
                renewed.add(key)
        changes = []
        for key in sorted(renewed):
            name, version, ends, _ = locks[key]
            holders = documents[key].holders
            last = None if ends is None else rows.end(holders)
            text = rows.write_document(documents[key].limit, holders)
            changes.append((version + 1, last, text, self.namespace, name))
        if changes:
            self.cursor.executemany(statements.RENEW_LOCK, changes)
        return found

    def due(self, limit: int, every: int) -> list[str] | None:
        fence, reaped, *_ = self._space()
        if reaped <= self.now < reaped + every:  # not after a clock that went back
            return None
        seen = self._all(statements.DUE_LEASES, self.now, self.namespace, self.now, _ENDED_PER_SWEEP)
        fence = max([fence, *(fence for _, fence, _, has_ended in seen if has_ended)])
        self.cursor.execute(statements.RAISE_FENCE, (fence, self.now, self.namespace))
        if ended := [(self.namespace, key) for key, _, _, has_ended in seen if has_ended]:
            self.cursor.executemany(statements.DELETE_LOCK, ended)
        if living := [(ends, self.namespace, key) for key, _, ends, has_ended in seen if not has_ended]:
            self.cursor.executemany(statements.POSTPONE_LOCK, living)
        old = self._all(
            statements.ENDED_TOMBSTONES, self.namespace, self.now - CLOCK_MARGIN, _ENDED_PER_SWEEP
        )
        if old:
            self.cursor.executemany(statements.DELETE_TOMBSTONE, [(self.namespace, *row) for row in old])
        return [to_text(key) for (key,) in self._all(statements.DUE_KEYS, self.namespace, self.now, limit)]

    def set_aside(self, key: str) -> None:
        """Let the reaper leave this key alone for a while."""
        due = self.now + SKIP_UNREADABLE
        self.cursor.execute(statements.POSTPONE_LOCK, (due, self.namespace, to_bytes(key)))

    def forget(self, key: str) -> None:
        """Its fences go on from here: raised first, as by the reaper, so that neither waits in a circle."""
        fence, reaped, *_ = self._space()
        self.cursor.execute(statements.RAISE_FENCE, (max(fence, self.now), reaped, self.namespace))
        for statement in (statements.DELETE_LINE, statements.DELETE_LOCK):
            self.cursor.execute(statement, (self.namespace, to_bytes(key)))

    def scan(self, prefix: str = "") -> Iterator[str]:
        keys = [to_text(key) for (key,) in self._all(statements.USED_KEYS, self.namespace)]
        return (key for key in keys if key.startswith(prefix))

    def keep_namespace(self, broker: str, life: int) -> str:
        _, _, owner, until = self._space()
        if owner not in (None, to_bytes(broker)) and until > self.now:
            return to_text(owner)
        self.cursor.execute(statements.KEEP_NAMESPACE, (to_bytes(broker), self.now + life, self.namespace))
        return broker

    def _space(self) -> Any:
        """Return the namespace's row, to be changed."""
        return self._one(statements.NAMESPACE, self.namespace)

    def _one(self, statement: str, *parameters: Any) -> Any:
        self.cursor.execute(statement, parameters)
        row = self.cursor.fetchone()
        if row is None:
            raise NamespaceGone(f"store {self.url}: the row of {self.prefix!r} is gone; trying again is safe")
        return row

    def _all(self, statement: str, *parameters: Any) -> list[Any]:
        self.cursor.execute(statement, parameters)
        return self.cursor.fetchall()


def new_version() -> int:
    """At random: a row that was deleted and made anew must not look unchanged."""
    return getrandbits(62) + 1
