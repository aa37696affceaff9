"""One namespace of a database within one transaction, which no other transaction can change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from random import getrandbits
from typing import Any, Protocol

from celery_exclusive.core import claim, records
from celery_exclusive.core.operations import Acquire, Applied, Enqueue, Operation, Owner, Renew
from celery_exclusive.core.records import NEVER, Document, Entry, Holder, Line, Part, State
from celery_exclusive.core.step import step
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.stores import base
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.damaged import Damaged, check_within
from celery_exclusive.stores.document_store import (
    CLOCK_MARGIN,
    NOTHING,
    Change,
    DocumentStore,
    Loaded,
    Reads,
    living,
)
from celery_exclusive.stores.sql import pages, rows, statements
from celery_exclusive.stores.sql.parts import PartRows, fields_of
from celery_exclusive.stores.sql.rows import Found, Space
from celery_exclusive.stores.text import to_bytes, to_text
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord, by_number

_LEASES_AT_ONCE = 500
_ALL = 2**31 - 1
"""A number above the copies that a run can have."""
_ENDED_AT_ONCE = 500
"""The most leases, and tombstones, that a transaction of a sweep ends: calls of these keys wait for it."""
_COUNTED = 1_000
"""The most entries beyond the limit that are counted before an entry: a long line may come again as a whole.
A step asks whether all before it have slots; to those that it moves itself at most 100 are offered."""
_SELDOM = 20 * records.SECOND
"""The time after which the record of a worker is written again."""
_OF_WORKERS = b""
"""The key, which no lock has, of the tombstones that are records of workers: they end by themselves, too."""
_EMPTY = rows.write_document(Document())
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
    kept_ended = 0
    """For how long the row of a key stays after a sweep has ended its last lease, see `end_leases`."""

    def __init__(self, cursor: Cursor, url: str, *, prefix: str, **times: int) -> None:
        super().__init__(url, prefix=prefix, **times)
        self.cursor, self.connection = cursor, cursor.connection
        self.namespace = to_bytes(prefix)
        self._needs_place = True
        """Whether the step asks how many stand before an entry."""

    def apply(self, key: str, operation: Operation) -> Reply:
        self._needs_place = isinstance(operation, (Acquire, Enqueue))
        try:
            return super().apply(key, operation)
        finally:
            self._needs_place = True

    def load(self, key: str, reads: Reads = NOTHING) -> Loaded:
        name = self.namespace, to_bytes(key)
        try:
            loaded = self._loaded(key, reads, self._find(key, reads.id))
            add = self._with_overdue if reads.sweeps else self._with_own
            line = add(key, reads, loaded)
            if reads.replaces and line.waiting:
                last = [rows.entry(*row) for row in self._all(statements.LAST, *name, records.NAMED)]
                line = replace(line, last=tuple(reversed(last)))
            return self._with_parts(key, reads, replace(loaded, line=line))
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def _find(self, key: str, id: str) -> Found:
        name = to_bytes(key)
        found = Found._make(self._one(statements.FIND, name, name, to_bytes(id), self.namespace))
        try:
            check_within(0, found.floor, NEVER)
        except Damaged as error:
            raise self._damaged_namespace(error) from error
        found.check()
        return found

    def _loaded(self, key: str, reads: Reads, found: Found) -> Loaded:
        tombstone = (
            to_text(found.token) if found.token is not None and (found.until or 0) > self.now else None
        )
        if found.version is None:
            return Loaded(0, self.now, Document(1, found.floor, (), found.epoch), Line(tombstone=tombstone))
        document = rows.read_document(found.document, found.last_fence, found.epoch)
        is_many, last = document.unread > 0, 0
        if is_many:
            document = self._with_holders(key, reads, document)
            last = NEVER if document.terms.last(self.now) else found.ends or NEVER
        if found.ends is not None:
            return Loaded(found.version, self.now, document, Line(tombstone=tombstone), last=last)
        count = reads.reach(document, self.now)
        head, waiting = self._part(key, "waiting", found.waiting, count, sweeps=reads.sweeps)
        aside, all_aside = self._part(key, "aside", found.aside, count, sweeps=reads.sweeps)
        if is_many:
            behind, all_behind = self._behind(key, reads, document, found.behind)
        else:
            behind, all_behind = self._part(key, "behind", found.behind, _ALL, sweeps=reads.sweeps)
        others = all_behind - len(behind)
        line = Line(waiting, head, aside, behind, others, ahead=waiting, tombstone=tombstone)
        return Loaded(found.version, self.now, document, line, all_aside, found.due, last)

    def _with_holders(self, key: str, reads: Reads, document: Document) -> Document:
        """Read the holders that a step reads."""
        name, own = (self.namespace, to_bytes(key)), tuple(map(to_bytes, reads.ids or ("",)))
        held = self._one(statements.HOLDER_COUNT, *name)[0] if reads.sweeps else document.unread
        statement = statements.repeated(statements.HOLDERS, len(own))

        def read(after: int, count: int) -> set[Holder]:
            found = self._all(statement, *name, after, count + len(own) + 1, *name, *own)
            return {rows.holder(*row) for row in found}

        first = read(0, records.NAMED + 2)
        if any(one.expiry <= self.now for one in first):
            first |= read(0, records.ENDED_AT_ONCE) | read(self.now, records.NAMED + 2)
        holders, unread, unread_expiry = records.readable(first, held, reads.ids, self.now)
        if unread and unread_expiry == NEVER:  # another program has deleted rows
            held = self._one(statements.HOLDER_COUNT, *name)[0]
            holders, unread, unread_expiry = records.readable(first, held, reads.ids, self.now)
        return replace(document, holders=holders, unread=unread, unread_expiry=unread_expiry)

    def _behind(
        self, key: str, reads: Reads, document: Document, counted: int
    ) -> tuple[tuple[Entry, ...], int]:
        """Read the entries behind the runs of the operation's ids and of expired leases, and count all."""
        name = (self.namespace, to_bytes(key))
        if reads.sweeps:
            counted = self._one(statements.LINE_COUNT, *name, "behind")[0]
        of = [to_bytes(one.id) for one in document.holders if one.expiry <= self.now or one.id in reads.ids]
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

    def _with_overdue(self, key: str, _: Reads, loaded: Loaded) -> Line:
        """Add the entries that a sweep recalls, and the time at which the next message expires."""
        if loaded.document.deadline > self.now:  # to look would read the whole line
            return replace(loaded.line, deadline=loaded.document.deadline)
        parameters = (self.namespace, to_bytes(key), NEVER, records.RECALLED_AT_ONCE + 1)
        first = tuple(rows.entry(*row) for row in self._all(statements.OVERDUE, *parameters))
        due, deadline = records.overdue(first, self.now)
        return replace(loaded.line, overdue=due, deadline=deadline)

    def _with_own(self, key: str, reads: Reads, loaded: Loaded) -> Line:
        """Add the entry of the operation's id, and its place in line if the step asks for that."""
        id, line = reads.id, loaded.line
        for place, entry in enumerate(line.head):
            if entry.id == id:
                return replace(line, entry=entry, ahead=place)
        others = line.aside or line.behind or line.others_behind or loaded.document.terms.shut
        if id and (line.waiting > len(line.head) or others):
            name = (self.namespace, to_bytes(key))
            for row in self._all(statements.repeated(statements.THESE_ENTRIES, 1), *name, to_bytes(id)):
                line = replace(line, entry=(entry := rows.entry(*row)))
                if self._needs_place:
                    place, most = entry.turn[0], reads.limit + _COUNTED
                    (before,) = self._one(statements.BEFORE, *name, place, place, to_bytes(id), most)
                    line = replace(line, ahead=before)
        return line

    def _with_parts(self, key: str, reads: Reads, loaded: Loaded) -> Loaded:
        """Add the parts that a step reads. Another program may have deleted some of their tasks."""
        document, name = loaded.document, (self.namespace, to_bytes(key))
        source = PartRows(self._all, *name)
        line = reads.with_parts(document, loaded.line, source, self.now)
        has_lost = any(part.shut < source.counted[part.name] for part in line.parts)
        if document.terms.shut and (has_lost or reads.sweeps or not (document.held or line.waiting)):
            (shut,) = self._one(statements.SHUT_COUNT, *name)
            document = replace(document, terms=replace(document.terms, shut=shut))
        return replace(loaded, document=document, line=line)

    def swap(self, key: str, version: int, change: Change) -> bool:
        if change.is_none:
            return True
        to, document, counts = change.transition, change.transition.document, change.counts()
        if document.unread and document.held <= records.NAMED:  # from now on they stand in the document
            document = self._with_unread(key, change)
        is_many = document.held > records.NAMED
        last = change.loaded.last if is_many else 0
        shut, part_due = document.terms.shut, document.terms.part_due
        has_line = any(counts) or shut > 0 or part_due < NEVER
        if last == NEVER and not has_line:
            (last,) = self._one(statements.LAST_EXPIRY, self.namespace, to_bytes(key))
        end = max(rows.end(document, self.now), last)
        due, ends = (to.due, None) if has_line else (end, end)
        text = rows.write_document(document)
        floor = change.loaded.document.fence
        if not self._write(key, version, floor, document.fence, due, ends, *counts, shut, text):
            return False
        self._swap_line(key, change)
        self._swap_parts(key, change, is_over=not (has_line or document.held))
        if is_many or change.loaded.last:
            self._swap_holders(key, change, document.holders if is_many else None)
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
            message = change.message if entry.id == change.id else None
            values = (*rows.fields_of(entry), message)
            statement = statements.CHANGE_ENTRY if entry.id in known else statements.INSERT_ENTRY
            self.cursor.execute(statement, (*values, self.namespace, to_bytes(key), to_bytes(entry.id)))
        for id in change.transition.removed:
            self.cursor.execute(statements.DELETE_ENTRY, (self.namespace, to_bytes(key), to_bytes(id)))

    def _swap_parts(self, key: str, change: Change, *, is_over: bool) -> None:
        """Store the parts. A key that `is_over` has none."""
        name, (parts, idle) = (self.namespace, to_bytes(key)), change.parts()
        if is_over:
            if change.loaded.line.parts:
                self.cursor.execute(statements.DELETE_PARTS, name)
            return
        if parts:
            changed = [(*fields_of(part), *name, to_bytes(part.name)) for part in parts]
            self.cursor.executemany(statements.PUT_PART, changed)
        if idle:
            self.cursor.executemany(statements.DELETE_PART, [(*name, to_bytes(part)) for part in idle])

    def _with_unread(self, key: str, change: Change) -> Document:
        """Return the new document with the leases that the step has not read."""
        document, read = change.transition.document, {one.id for one in change.loaded.document.holders}
        every = self._all(statements.EACH_HOLDER, self.namespace, to_bytes(key))
        rest = (holder for holder in (rows.holder(*row) for row in every) if holder.id not in read)
        return replace(document, holders=(*document.holders, *rest), unread=0)

    def _swap_holders(self, key: str, change: Change, many: Sequence[Holder] | None) -> None:
        """Store the leases of a key that had a row for each, or has.

        Parameters:
            many: the leases in its document, beside those that the step has not read; None: it has few.
        """
        name, had_many = (self.namespace, to_bytes(key)), change.loaded.last > 0
        known = {holder.id for holder in change.loaded.document.holders} if had_many else set[str]()
        changed, ended = change.leases
        if many is None or not had_many:
            self.cursor.execute(statements.DELETE_HOLDERS, name)
            changed, ended = [*(many or ())], []
        for statement, is_new in ((statements.INSERT_HOLDER, True), (statements.CHANGE_HOLDER, False)):
            leases = [holder for holder in changed if (holder.id not in known) is is_new]
            if leases:
                self.cursor.executemany(statement, self._lease_rows(to_bytes(key), leases))
        if ended:
            self.cursor.executemany(statements.DELETE_HOLDER, [(*name, to_bytes(id)) for id in ended])

    def _lease_rows(self, key: bytes, leases: Iterable[Holder]) -> list[tuple[object, ...]]:
        """Return the parameters that insert or change the rows of these leases."""
        return [(*rows.fields_of_holder(one), self.namespace, key, to_bytes(one.id)) for one in leases]

    def holders(self, key: str) -> list[Owner]:
        loaded = self.load(key)
        every = loaded.document.holders
        if loaded.document.unread:
            try:
                each = self._all(statements.EACH_HOLDER, self.namespace, to_bytes(key))
                every = tuple(rows.holder(*row) for row in each)
            except Damaged as error:
                raise UnreadableKey(key, str(error), self.url) from error
        return living(every, self.now)

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        statement = statements.repeated(statements.MESSAGES, len(ids))
        found = self._all(statement, self.namespace, to_bytes(key), *map(to_bytes, ids))
        # What is no message counts as one that others have deleted.
        return {to_text(id): message for id, message in found if isinstance(message, bytes)}

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool | None]:
        batches = (leases[at : at + _LEASES_AT_ONCE] for at in range(0, len(leases), _LEASES_AT_ONCE))
        return [is_found for batch in batches for is_found in self._renew(batch)]

    def _renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool | None]:
        """Renew many leases: all rows are read at once, and changed at once, since renewals touch no line."""
        locks, kept, locked = self._renewable(leases)
        found, changes, changed = list[bool | None](), list[tuple[object, ...]](), list[tuple[object, ...]]()
        documents = dict(kept)
        for key, renewal in leases:
            transition = step(documents.get(key, Document()), Line(), renewal, self.now, self.offer)
            is_held = transition.answer == Applied(True)
            if is_held:
                documents[key] = transition.document
            found.append(None if (key, renewal.id) in locked else is_held)
        for key in sorted(documents):
            if documents[key] is not kept[key]:
                name, version, ends, _ = locks[key]
                of_line = kept[key]  # which the step has not seen
                renewed = replace(
                    documents[key], deadline=of_line.deadline, queue=of_line.queue, terms=of_line.terms
                )
                is_many, last = renewed.held > records.NAMED, None
                if ends is not None:
                    last = max(rows.end(renewed, self.now), ends if is_many else 0)
                if is_many:
                    changed += self._lease_rows(name, renewed.holders)
                changes.append((version + 1, last, rows.write_document(renewed), self.namespace, name))
        if changes:
            self.cursor.executemany(statements.RENEW_LOCK, changes)
        if changed:
            self.cursor.executemany(statements.CHANGE_HOLDER, changed)
        return found

    def _renewable(
        self, leases: Sequence[tuple[str, Renew]]
    ) -> tuple[dict[str, Any], dict[str, Document], set[tuple[str, str]]]:
        """Return the rows and the documents of these leases' keys, and which leases others keep locked."""
        ids = dict[str, list[str]]()
        for key, renewal in sorted(leases, key=itemgetter(0)):
            ids.setdefault(key, []).append(renewal.id)
        statement = statements.repeated(statements.RENEWED_LOCKS, len(ids))
        locks = {to_text(row[0]): row for row in self._all(statement, self.namespace, *map(to_bytes, ids))}
        missing = [key for key in ids if key not in locks]
        locked = {(key, id) for key in self.locked_by_others(missing) for id in ids[key]}
        kept = dict[str, Document]()
        for key, (_, version, ends, text) in locks.items():
            with suppress(Damaged):  # the others must not lose their leases for it
                rows.check_lock(version, ends)
                kept[key] = self._with_these(key, ids[key], rows.read_document(text))
                if kept[key].unread:
                    unread = {*ids[key]}.difference(one.id for one in kept[key].holders)
                    locked |= {(key, id) for id in self.locked_by_others([*unread], of=key)}
        return locks, kept, locked

    def _with_these(self, key: str, ids: Sequence[str], document: Document) -> Document:
        """Add the holders that are renewed, if the key has many."""
        if not document.unread:
            return document
        statement = statements.repeated(statements.THESE_HOLDERS, len(ids))
        found = self._all(statement, self.namespace, to_bytes(key), *map(to_bytes, ids))
        holders = tuple(rows.holder(*row) for row in found)
        return replace(document, holders=holders, unread=document.unread - len(holders))

    def locked_by_others(self, names: Sequence[str], *, of: str = "") -> set[str]:  # noqa: ARG002 - one writes
        """Return the names whose rows were not read, since other transactions keep them locked.

        They are keys, or ids of holders `of` a key.
        """
        return set()

    def due(self, limit: int, every: int) -> list[str] | None:
        return None if self.end_leases(every) is None else self.due_keys(limit, self.now)

    def due_keys(self, limit: int, now: int) -> list[str]:
        """Return the keys with a line that are due."""
        return [key for (key,) in _texts(self._all(statements.DUE_KEYS, self.namespace, now, limit))]

    def next_due(self) -> int | None:
        return self.soonest_due(self.now)

    def soonest_due(self, now: int) -> int | None:
        """Return when the first key with a line is due, also if others keep it locked."""
        found = self._all(statements.NEXT_DUE, self.namespace, now + records.SOON)
        return next((due for (due,) in found if isinstance(due, int)), None)

    def end_leases(self, every: int) -> bool | None:
        """End leases and terms of keys without a line, and tombstones; return whether none are left.

        None: another process sweeps, or has swept within `every` microseconds.

        A row that is deleted takes the last fence of its key along, so the namespace's fence is raised to it
        before. A grant reads that one without a lock, else grants, beats and sweeps would hold each other up:
        it may have read the lower fence, or no tombstone yet, when the row goes. So a server, where others
        write beside a sweep, keeps the row, without its leases, for `kept_ended` longer: no caller waits for
        so old a grant any more. Such a row has no end but a time at which it is due, after a release it has
        neither. The epoch needs no lock either: it comes in one statement with the row, and changes only with
        the namespace's row itself, without which nothing is granted.
        """
        if not self._may_sweep():
            return None
        space = self.look()
        if space.is_swept(self.now, every):
            return None
        seen = self._all(statements.DUE_LEASES, self.namespace, self.now, _ENDED_AT_ONCE)
        old = self._all(statements.ENDED_TOMBSTONES, self.namespace, self.now - CLOCK_MARGIN, _ENDED_AT_ONCE)
        is_all = max(len(seen), len(old)) < _ENDED_AT_ONCE
        fence, later, ended, over = space.fence, list[Any](), list[Any](), list[Any]()
        for key, last, due, ends in seen:
            name = self.namespace, key
            if not isinstance(ends, int):  # damaged: a call of the key says so
                later.append((self.now + records.SKIP_UNREADABLE, *name))
                continue
            if ends > self.now:
                later.append((ends, *name))
                continue
            fence = max(fence, last if isinstance(last, int) else 0)
            if self.kept_ended and (ends or not due):
                ended.append((self.now + self.kept_ended, _EMPTY, *name))
            else:
                over.append(name)
        self.cursor.execute(
            statements.RAISE_FENCE, (fence, self.now if is_all else space.reaped, self.namespace)
        )
        for statement, names in (
            (statements.POSTPONE_LOCK, later),
            (statements.CLEAR_LOCK, ended),
            (statements.DELETE_LOCK, over),
            (statements.DELETE_TOMBSTONE, [(self.namespace, *row) for row in old]),
        ):
            if names:
                self.cursor.executemany(statement, names)
        if ended or over:
            self._end_rows_of([row[-2:] for row in (*ended, *over)])
        return is_all

    def _end_rows_of(self, names: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete the leases and the parts of keys without a line, if the namespace has any."""
        has_holders, has_parts = self._one(statements.ANY_HOLDER_OR_PART, self.namespace, self.namespace)
        for statement, is_any in (
            (statements.DELETE_HOLDERS, has_holders),
            (statements.DELETE_PARTS, has_parts),
        ):
            if is_any:
                self.cursor.executemany(statement, names)

    def set_aside(self, key: str) -> None:
        """Let the reaper skip this key for a while."""
        due = self.now + records.SKIP_UNREADABLE
        self.cursor.execute(statements.POSTPONE_LOCK, (due, self.namespace, to_bytes(key)))

    def forget(self, key: str) -> None:
        """Delete a key's rows, after raising the fence of the namespace, from which its later fences grow.

        The reaper locks in the same order, so that neither waits in a circle.
        """
        self._lock_namespace()
        space = self.look()
        self.cursor.execute(
            statements.RAISE_FENCE, (max(space.fence, self.now), space.reaped, self.namespace)
        )
        for statement in statements.DELETE_KEY:
            self.cursor.execute(statement, (self.namespace, to_bytes(key)))

    def line(self, key: str, after: base.Cursor | None = None, count: int = base.TASKS_PER_PAGE) -> base.Page:
        parameters = pages.parameters(self.namespace, key, after, count)
        try:
            if (found := self._find(key, "")).version is not None:
                rows.read_document(found.document)
            return pages.page(self._all(statements.PAGE, *parameters), count, self.now)
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        try:
            return PartRows(self._all, self.namespace, to_bytes(key)).some(count)
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def places(self) -> Iterator[tuple[str, str]]:
        return ((key, id) for key, id in _texts(self._all(statements.PLACES, self.namespace)))

    def lines(self) -> Iterator[base.KeyInLine]:
        for key, *numbers in self._all(statements.LINES, self.namespace):
            if isinstance(key, bytes):
                waiting, shut, aside, due, first = (it if isinstance(it, int) else 0 for it in numbers)
                age = max(self.now - first, 0) if first else 0
                yield base.KeyInLine(to_text(key), waiting + shut, aside, 0 < due <= self.now, age)

    def keys_of(self, task_id: str) -> Iterator[str]:
        part = self.namespace, to_bytes(f"{task_id}/"), to_bytes(f"{task_id}0")
        for key, id in _texts(self._all(statements.ROWS_OF_TASK, *part, *part)):
            if claim.task_id(id) == task_id:
                yield key
        for key, text in self._all(statements.DOCUMENTS_OF_TASK, self.namespace, rows.with_holder(task_id)):
            with suppress(Damaged):
                holders = rows.read_document(text).holders
                if isinstance(key, bytes) and any(claim.task_id(one.id) == task_id for one in holders):
                    yield to_text(key)

    def scan(self, prefix: str = "") -> Iterator[str]:
        keys = _texts(self._all(statements.USED_KEYS, self.namespace))
        return (key for (key,) in keys if key.startswith(prefix))

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        self._lock_namespace()
        space = self.look(worker)
        owner = space.broker
        if owner not in (None, to_bytes(broker)) and self._is_kept(space.broker_until or 0, adopts=adopts):
            return to_text(owner)
        self.cursor.execute(statements.KEEP_NAMESPACE, (to_bytes(broker), self.now + life, self.namespace))
        if worker and not self._is_known(space):
            name = self._name_of(worker)
            self.cursor.execute(statements.DELETE_TOMBSTONE, name)
            self.cursor.execute(statements.INSERT_TOMBSTONE, (*name, self.now + FORGOTTEN_AFTER, worker.text))
        return broker

    def forget_worker(self, worker: WorkerRecord) -> None:
        self.cursor.execute(statements.DELETE_TOMBSTONE, self._name_of(worker))

    def has_kept(self, broker: str, life: int, worker: WorkerRecord | None = None) -> bool:
        """Whether `keep_namespace` was called so shortly before that it need not write, nor wait."""
        space = self.look(worker)
        left = (space.broker_until or 0) - self.now
        is_kept = space.broker == to_bytes(broker) and life - life // 6 <= left <= life
        return is_kept and (not worker or self._is_known(space))

    def _is_known(self, space: Space) -> bool:
        """Whether the record of a worker was written not long ago."""
        return (space.known_until or 0) >= self.now + FORGOTTEN_AFTER - _SELDOM

    def namespace_owner(self, *, adopts: bool = False) -> str:
        space = self.look()
        owner, until = space.broker, space.broker_until or 0
        return to_text(owner) if owner is not None and self._is_kept(until, adopts=adopts) else ""

    def workers(self, within: int = FORGOTTEN_AFTER) -> dict[int, list[WorkerRecord]]:
        since = self.now + FORGOTTEN_AFTER - within
        found = self._all(statements.WORKERS, self.namespace, _OF_WORKERS, since)
        return by_number(text for (text,) in found if isinstance(text, bytes))

    def try_out(self) -> None:
        """Write what is there. Raises if the user may not, or if the file is read-only."""
        self._lock_namespace()
        space = self.look()
        self.cursor.execute(statements.RAISE_FENCE, (space.fence, space.reaped, self.namespace))

    def times(self) -> base.Times:
        space = self.look()
        return base.Times(self.now, space.reaped or None)

    def _is_kept(self, until: int, *, adopts: bool) -> bool:
        """Whether the namespace belongs to the broker that kept it last."""
        return until > self.now or bool(not adopts and self._all(statements.ANY_ENTRY, self.namespace))

    def look(self, worker: WorkerRecord | None = None) -> Space:
        """Return the namespace's row without a lock, and until when the record of a worker is kept."""
        return self._sound(self._one(statements.SPACE, *self._name_of(worker), self.namespace))

    def _sound(self, row: Iterable[Any]) -> Space:
        space = Space._make(row)
        try:
            space.check()
        except Damaged as error:
            raise self._damaged_namespace(error) from error
        return space

    def _damaged_namespace(self, error: Damaged) -> StoreUnavailable:
        return StoreUnavailable(
            f"store {self.url}: the row of {self.prefix!r} in exclusive2_namespace is damaged ({error}): "
            "delete it, the next call makes it anew"
        )

    def _name_of(self, worker: WorkerRecord | None) -> tuple[bytes, bytes, bytes]:
        return self.namespace, _OF_WORKERS, to_bytes(worker.id if worker else "")

    def _lock_namespace(self) -> None:
        """Keep sweeps and others that change the namespace's row out, for the rest of the transaction."""

    def _may_sweep(self) -> bool:
        """Do the same, unless another transaction has done it: then it sweeps."""
        return True

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
