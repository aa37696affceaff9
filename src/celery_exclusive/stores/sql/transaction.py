"""One namespace of a database within one transaction, which no other transaction can change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from random import getrandbits
from typing import Any, Protocol

from celery_exclusive.core import records
from celery_exclusive.core.operations import Applied, Renew
from celery_exclusive.core.records import NEVER, Document, Entry, Holder, Line, State
from celery_exclusive.core.step import step
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores import base
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.damaged import Damaged
from celery_exclusive.stores.document_store import CLOCK_MARGIN, Change, DocumentStore, Loaded
from celery_exclusive.stores.sql import pages, rows, statements
from celery_exclusive.stores.sql.rows import Found
from celery_exclusive.stores.text import to_bytes, to_text
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord, by_number

_LEASES_AT_ONCE = 500
_ALL = 2**31 - 1
"""A number above the copies that a run can have."""
_ENDED_PER_SWEEP = 5_000
"""The most leases, and tombstones, that a sweep ends: it is one transaction, for which all others wait."""
_SELDOM = 3600 * records.SECOND
"""The time after which the record of a worker is written again."""
_OF_WORKERS = b""
"""The key, which no lock has, of the tombstones that are records of workers: they end by themselves, too."""
RELEASED = Reply(Applied(True))


class NamespaceGone(StoreUnavailable):
    """The namespace's row is missing: another program deleted it, or all tables."""


class Cursor(Protocol):
    """The cursor of a database driver (DB-API 2.0)."""

    @property
    def connection(self) -> Any: ...
    @property
    def rowcount(self) -> int: ...
    def execute(self, statement: str, parameters: Any = ..., /) -> object: ...
    def executemany(self, statement: str, parameters: Any, /) -> object: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> Sequence[Any]: ...


class Transaction(DocumentStore):
    """Executes the verbs of a store within a transaction that the store begins and ends.

    Parameters:
        cursor: of a connection to a database that has the tables and the namespace's row.

    `now` is the instant of the transaction, in microseconds: the store reads its clock at the beginning.
    """

    now: int

    def __init__(self, cursor: Cursor, url: str, *, prefix: str, **times: int) -> None:
        super().__init__(url, prefix=prefix, **times)
        self.cursor, self.connection = cursor, cursor.connection
        self.namespace = to_bytes(prefix)

    def load(
        self,
        key: str,
        ids: tuple[str, ...] = (),
        limit: int = 1,
        *,
        replaces: bool = False,
        sweeps: bool = False,
    ) -> Loaded:
        id = next(iter(ids), "")
        try:
            loaded = self._loaded(key, ids, limit, self._find(key, id), sweeps=sweeps)
            line = self._with_overdue(key, loaded) if sweeps else self._with_own(key, id, loaded.line)
            if replaces and line.waiting:
                name = (self.namespace, to_bytes(key), records.NAMED)
                last = [rows.entry(*row) for row in self._all(statements.LAST, *name)]
                line = replace(line, last=tuple(reversed(last)))
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error
        return replace(loaded, line=line)

    def load_to_sweep(self, key: str) -> Loaded:
        return self.load(key, sweeps=True)

    def _find(self, key: str, id: str) -> Found:
        name = to_bytes(key)
        found = Found._make(self._one(statements.FIND, name, name, to_bytes(id), self.namespace))
        found.check()
        return found

    def _loaded(self, key: str, ids: tuple[str, ...], limit: int, found: Found, *, sweeps: bool) -> Loaded:
        tombstone = (
            to_text(found.token) if found.token is not None and (found.until or 0) > self.now else None
        )
        if found.version is None:
            return Loaded(0, self.now, Document(1, found.floor, (), found.epoch), Line(tombstone=tombstone))
        document = rows.read_document(found.document, found.last_fence, found.epoch)
        is_many, last = document.unread > 0, 0
        if is_many:
            document, last = self._with_holders(key, ids, document, sweeps=sweeps), found.ends or NEVER
        if found.ends is not None:
            return Loaded(found.version, self.now, document, Line(tombstone=tombstone), last=last)
        count = records.reach(document, limit)
        head, waiting = self._part(key, "waiting", found.waiting, count, sweeps=sweeps)
        aside, all_aside = self._part(key, "aside", found.aside, count, sweeps=sweeps)
        if is_many:
            behind, all_behind = self._behind(key, ids, document, found.behind, sweeps=sweeps)
        else:
            behind, all_behind = self._part(key, "behind", found.behind, _ALL, sweeps=sweeps)
        others = all_behind - len(behind)
        line = Line(waiting, head, aside, behind, others, ahead=waiting, tombstone=tombstone)
        return Loaded(found.version, self.now, document, line, all_aside, found.due, last)

    def _with_holders(self, key: str, ids: tuple[str, ...], document: Document, *, sweeps: bool) -> Document:
        """Read the holders that a step reads."""
        name, own = (self.namespace, to_bytes(key)), tuple(map(to_bytes, ids or ("",)))
        held = self._one(statements.HOLDER_COUNT, *name)[0] if sweeps else document.unread
        statement = statements.repeated(statements.HOLDERS, len(own))

        def read(after: int, count: int) -> set[Holder]:
            found = self._all(statement, *name, after, count + len(own) + 1, *name, *own)
            return {rows.holder(*row) for row in found}

        first = read(0, records.NAMED + 2)
        if any(one.expiry <= self.now for one in first):
            first |= read(0, records.ENDED_AT_ONCE) | read(self.now, records.NAMED + 2)
        holders, unread, unread_expiry = records.readable(first, held, ids, self.now)
        if unread and unread_expiry == NEVER:  # another program has deleted rows
            held = self._one(statements.HOLDER_COUNT, *name)[0]
            holders, unread, unread_expiry = records.readable(first, held, ids, self.now)
        return replace(document, holders=holders, unread=unread, unread_expiry=unread_expiry)

    def _behind(
        self, key: str, ids: tuple[str, ...], document: Document, counted: int, *, sweeps: bool
    ) -> tuple[tuple[Entry, ...], int]:
        """Read the entries behind the runs of the operation's ids and of expired leases, and count all."""
        name = (self.namespace, to_bytes(key))
        if sweeps:
            counted = self._one(statements.LINE_COUNT, *name, "behind")[0]
        of = [to_bytes(one.id) for one in document.holders if one.expiry <= self.now or one.id in ids]
        if not (counted and of):
            return (), counted
        found = self._all(statements.repeated(statements.THESE_ENTRIES, len(of)), *name, *of)
        entries = (rows.entry(*row) for row in found)
        return tuple(entry for entry in entries if entry.state == "behind"), counted

    def _part(
        self, key: str, state: State, counted: int, count: int, *, sweeps: bool
    ) -> tuple[tuple[Entry, ...], int]:
        """Read up to `count` entries in a state; return also the number of all entries in it.

        Another program may have deleted some of the line. So entries are counted, not taken from the stored
        count, where all of them are read, and by a sweep.
        """
        if not (counted or sweeps):
            return (), 0
        name = (self.namespace, to_bytes(key), state)
        part = tuple(rows.entry(*row) for row in self._all(statements.LINE_PART, *name, count))
        if len(part) < count:
            return part, len(part)
        return part, self._one(statements.LINE_COUNT, *name)[0] if sweeps else counted

    def _with_overdue(self, key: str, loaded: Loaded) -> Line:
        """Add the entries that a sweep recalls, and the time at which the next message expires."""
        if loaded.document.deadline > self.now:  # to look would read the whole line
            return replace(loaded.line, deadline=loaded.document.deadline)
        parameters = (self.namespace, to_bytes(key), NEVER, records.RECALLED_AT_ONCE + 1)
        first = tuple(rows.entry(*row) for row in self._all(statements.OVERDUE, *parameters))
        due, deadline = records.overdue(first, self.now)
        return replace(loaded.line, overdue=due, deadline=deadline)

    def _with_own(self, key: str, id: str, line: Line) -> Line:
        """Add the entry of the operation's id, and its place in line."""
        for place, entry in enumerate(line.head):
            if entry.id == id:
                return replace(line, entry=entry, ahead=place)
        if id and (line.waiting > len(line.head) or line.aside or line.behind or line.others_behind):
            for *row, before in self._all(statements.ENTRY, self.namespace, to_bytes(key), to_bytes(id)):
                return replace(line, entry=rows.entry(*row), ahead=before)
        return line

    def swap(self, key: str, version: int, change: Change) -> bool:
        if change.is_none:
            return True
        to, document, counts = change.transition, change.transition.document, change.counts()
        if document.unread and document.held <= records.NAMED:  # from now on they stand in the document
            document = self._with_unread(key, change)
        is_many = document.held > records.NAMED
        last = change.loaded.last if is_many else 0
        if last == NEVER and not any(counts):
            (last,) = self._one(statements.LAST_EXPIRY, self.namespace, to_bytes(key))
        end = max(rows.end(document.holders), last)
        due, ends = (to.due, None) if any(counts) else (end, end)
        text = rows.write_document(document)
        floor = change.loaded.document.fence
        if not self._write(key, version, floor, document.fence, due, ends, *counts, text):
            return False
        self._swap_line(key, change)
        if is_many or change.loaded.last:
            self._swap_holders(key, change, document.holders if is_many else ())
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
            values = (*rows.fields_of(entry), place, message)
            statement = statements.CHANGE_ENTRY if entry.id in known else statements.INSERT_ENTRY
            self.cursor.execute(statement, (*values, self.namespace, to_bytes(key), to_bytes(entry.id)))
        for id in change.transition.removed:
            self.cursor.execute(statements.DELETE_ENTRY, (self.namespace, to_bytes(key), to_bytes(id)))

    def _with_unread(self, key: str, change: Change) -> Document:
        """Return the new document with the leases that the step has not read."""
        document, read = change.transition.document, {one.id for one in change.loaded.document.holders}
        every = self._all(statements.EACH_HOLDER, self.namespace, to_bytes(key))
        rest = (holder for holder in (rows.holder(*row) for row in every) if holder.id not in read)
        return replace(document, holders=(*document.holders, *rest), unread=0)

    def _swap_holders(self, key: str, change: Change, many: Sequence[Holder]) -> None:
        """Store the leases of a key that had a row for each, or has: `many` are the ones in its document."""
        name, had_many = (self.namespace, to_bytes(key)), change.loaded.last > 0
        known = {holder.id for holder in change.loaded.document.holders} if had_many else set[str]()
        changed, ended = change.leases
        if not (many and had_many):
            self.cursor.execute(statements.DELETE_HOLDERS, name)
            changed, ended = [*many], []
        for statement, is_new in ((statements.INSERT_HOLDER, True), (statements.CHANGE_HOLDER, False)):
            leases = [holder for holder in changed if (holder.id not in known) is is_new]
            if leases:
                self.cursor.executemany(statement, self._lease_rows(to_bytes(key), leases))
        if ended:
            self.cursor.executemany(statements.DELETE_HOLDER, [(*name, to_bytes(id)) for id in ended])

    def _lease_rows(self, key: bytes, leases: Iterable[Holder]) -> list[tuple[object, ...]]:
        """Return the parameters that insert or change the rows of these leases."""
        return [(*rows.fields_of_holder(one), self.namespace, key, to_bytes(one.id)) for one in leases]

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        statement = statements.repeated(statements.MESSAGES, len(ids))
        found = self._all(statement, self.namespace, to_bytes(key), *map(to_bytes, ids))
        return {to_text(id): message for id, message in found}

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool | None]:
        batches = (leases[at : at + _LEASES_AT_ONCE] for at in range(0, len(leases), _LEASES_AT_ONCE))
        return [is_found for batch in batches for is_found in self._renew(batch)]

    def _renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool | None]:
        """Renew many leases: all rows are read at once, and changed at once, since renewals touch no line."""
        keys = sorted({key for key, _ in leases})
        statement = statements.repeated(statements.RENEWED_LOCKS, len(keys))
        locks = {to_text(row[0]): row for row in self._all(statement, self.namespace, *map(to_bytes, keys))}
        missing = [key for key in keys if key not in locks]
        locked = self.locked_by_others(missing) if missing else set[str]()
        kept, found, changes = dict[str, Document](), list[bool | None](), list[tuple[object, ...]]()
        changed = list[tuple[object, ...]]()
        for key, (*_, text) in locks.items():
            with suppress(Damaged):  # the others must not lose their leases for it
                kept[key] = self._with_these(key, leases, rows.read_document(text))
        documents = dict(kept)
        for key, renewal in leases:
            transition = step(documents.get(key, Document()), Line(), renewal, self.now, self.offer)
            is_held = transition.answer == Applied(True)
            if is_held:
                documents[key] = transition.document
            found.append(None if key in locked else is_held)
        for key in sorted(documents):
            if documents[key] is not kept[key]:
                name, version, ends, _ = locks[key]
                renewed = replace(documents[key], deadline=kept[key].deadline)
                is_many, last = renewed.held > records.NAMED, None
                if ends is not None:
                    last = max(rows.end(renewed.holders), ends if is_many else 0)
                if is_many:
                    changed += self._lease_rows(name, renewed.holders)
                changes.append((version + 1, last, rows.write_document(renewed), self.namespace, name))
        if changes:
            self.cursor.executemany(statements.RENEW_LOCK, changes)
        if changed:
            self.cursor.executemany(statements.CHANGE_HOLDER, changed)
        return found

    def _with_these(self, key: str, leases: Sequence[tuple[str, Renew]], document: Document) -> Document:
        """Add the holders that are renewed, if the key has many."""
        if not document.unread:
            return document
        ids = sorted({to_bytes(renewal.id) for of, renewal in leases if of == key})
        statement = statements.repeated(statements.THESE_HOLDERS, len(ids))
        found = self._all(statement, self.namespace, to_bytes(key), *ids)
        holders = tuple(rows.holder(*row) for row in found)
        return replace(document, holders=holders, unread=document.unread - len(holders))

    def locked_by_others(self, keys: Sequence[str]) -> set[str]:  # noqa: ARG002 - one at a time writes
        """Return the keys whose rows were not read, since other transactions keep them locked."""
        return set()

    def due(self, limit: int, every: int) -> list[str] | None:
        fence, reaped, *_ = self._space()
        if reaped <= self.now < reaped + every:  # not after a clock that went back
            return None
        seen = self._all(statements.DUE_LEASES, self.now, self.namespace, self.now, _ENDED_PER_SWEEP)
        old = self._all(
            statements.ENDED_TOMBSTONES, self.namespace, self.now - CLOCK_MARGIN, _ENDED_PER_SWEEP
        )
        if max(len(seen), len(old)) < _ENDED_PER_SWEEP:
            reaped = self.now  # else there may be more, and the next sweep need not wait
        fence = max([fence, *(fence for _, fence, _, has_ended in seen if has_ended and type(fence) is int)])
        self.cursor.execute(statements.RAISE_FENCE, (fence, reaped, self.namespace))
        if ended := [(self.namespace, key) for key, _, _, has_ended in seen if has_ended]:
            self.cursor.executemany(statements.DELETE_LOCK, ended)
            if self._all(statements.ANY_HOLDER, self.namespace):
                self.cursor.executemany(statements.DELETE_HOLDERS, ended)
        if living := [(ends, self.namespace, key) for key, _, ends, has_ended in seen if not has_ended]:
            self.cursor.executemany(statements.POSTPONE_LOCK, living)
        if old:
            self.cursor.executemany(statements.DELETE_TOMBSTONE, [(self.namespace, *row) for row in old])
        return [key for (key,) in _texts(self._all(statements.DUE_KEYS, self.namespace, self.now, limit))]

    def set_aside(self, key: str) -> None:
        """Let the reaper skip this key for a while."""
        due = self.now + records.SKIP_UNREADABLE
        self.cursor.execute(statements.POSTPONE_LOCK, (due, self.namespace, to_bytes(key)))

    def forget(self, key: str) -> None:
        """Delete a key's rows, after raising the fence of the namespace, from which its later fences grow.

        The reaper locks in the same order, so that neither waits in a circle.
        """
        fence, reaped, *_ = self._space()
        self.cursor.execute(statements.RAISE_FENCE, (max(fence, self.now), reaped, self.namespace))
        for statement in (statements.DELETE_LINE, statements.DELETE_HOLDERS, statements.DELETE_LOCK):
            self.cursor.execute(statement, (self.namespace, to_bytes(key)))

    def line(self, key: str, after: base.Cursor | None = None, count: int = base.TASKS_PER_PAGE) -> base.Page:
        parameters = pages.parameters(self.namespace, key, after, count)
        try:
            if (found := self._find(key, "")).version is not None:
                rows.read_document(found.document)
            return pages.page(self._all(statements.PAGE, *parameters), count, self.now)
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, id) for key, id in _texts(self._all(statements.PLACES, self.namespace)))

    def scan(self, prefix: str = "") -> Iterator[str]:
        keys = _texts(self._all(statements.USED_KEYS, self.namespace))
        return (key for (key,) in keys if key.startswith(prefix))

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        _, _, owner, until, known_until = self._space(worker)
        if owner not in (None, to_bytes(broker)) and self._is_kept(until, adopts=adopts):
            return to_text(owner)
        self.cursor.execute(statements.KEEP_NAMESPACE, (to_bytes(broker), self.now + life, self.namespace))
        if worker and (known_until or 0) < self.now + FORGOTTEN_AFTER - _SELDOM:
            name = (self.namespace, _OF_WORKERS, to_bytes(worker.id))
            self.cursor.execute(statements.DELETE_TOMBSTONE, name)
            self.cursor.execute(statements.INSERT_TOMBSTONE, (*name, self.now + FORGOTTEN_AFTER, worker.text))
        return broker

    def namespace_owner(self, *, adopts: bool = False) -> str:
        _, _, owner, until = self._one(statements.NAMESPACE, self.namespace)
        return to_text(owner) if owner is not None and self._is_kept(until, adopts=adopts) else ""

    def workers(self) -> dict[int, list[WorkerRecord]]:
        found = self._all(statements.WORKERS, self.namespace, _OF_WORKERS, self.now)
        return by_number(text for (text,) in found if isinstance(text, bytes))

    def try_out(self) -> None:
        """Sweep no key, and write. Raises if the user may not, or if the file is read-only."""
        self.reap(limit=0, every=NEVER)  # it writes only if no worker has swept
        fence, reaped, *_ = self._one(statements.NAMESPACE, self.namespace)
        self.cursor.execute(statements.RAISE_FENCE, (fence, reaped, self.namespace))

    def prefixes(self) -> Iterator[str]:
        yield from (name for (name,) in _texts(self._all(statements.PREFIXES)))

    def times(self) -> base.Times:
        _, reaped, *_ = self._one(statements.NAMESPACE, self.namespace)
        return base.Times(self.now, reaped or None)

    def _is_kept(self, until: int, *, adopts: bool) -> bool:
        """Whether the namespace belongs to the broker that kept it last."""
        return until > self.now or bool(not adopts and self._all(statements.ANY_ENTRY, self.namespace))

    def _space(self, worker: WorkerRecord | None = None) -> Any:
        """Return the namespace's row, to be changed, and until when the record of a worker is kept."""
        if not worker:
            return (*self._one(statements.NAMESPACE, self.namespace), None)
        of_worker = self.namespace, _OF_WORKERS, to_bytes(worker.id)
        return self._one(statements.NAMESPACE_OF_WORKER, *of_worker, self.namespace)

    def _one(self, statement: str, *parameters: Any) -> Any:
        self.cursor.execute(statement, parameters)
        row = self.cursor.fetchone()
        if row is None:
            raise NamespaceGone(f"store {self.url}: the row of {self.prefix!r} is gone; trying again is safe")
        return row

    def _all(self, statement: str, *parameters: Any) -> Sequence[Any]:
        self.cursor.execute(statement, parameters)
        return self.cursor.fetchall()


def _texts(rows: Sequence[Any]) -> Iterator[list[str]]:
    """Yield rows of keys and ids, without rows of other programs: SQLite keeps a text where bytes belong."""
    return ([to_text(name) for name in row] for row in rows if all(isinstance(name, bytes) for name in row))


def new_version() -> int:
    """Return a random version, so that a row that was deleted and made anew does not look unchanged."""
    return getrandbits(62) + 1
