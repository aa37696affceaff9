"""One namespace of a database within one transaction: nobody else changes it meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from celery_exclusive.core.document import SET_ASIDE, Document, Entry, Holder, Line, State, reach
from celery_exclusive.core.operations import Done, Renew
from celery_exclusive.core.step import step
from celery_exclusive.stores.document import Change, DocumentStore, Loaded
from celery_exclusive.stores.sql import schema, statements

MINUTE = 60_000_000
"""How much longer than told a tombstone is kept, in case the clock is set back."""
_LEASES_PER_STATEMENT = 500
_ENDED_PER_SWEEP = 5_000
"""A sweep is one transaction, for which all others wait."""
_HOLDER = ("id", "token", "expiry", "fence", "waited", "phase")


class Damaged(ValueError):
    """The rows of a key hold what no release of this library wrote."""


class Transaction(DocumentStore):
    """Does what a store is asked between the beginning and the end of a transaction that the store opened.

    Parameters:
        connection: of a database that has the tables and the namespace's row.
        now: tells the time in microseconds.
    """

    def __init__(
        self,
        connection: Connection,
        now: Callable[[], int],
        *,
        url: str,
        prefix: str,
        offer: int,
        tombstone_ttl: int,
    ) -> None:
        super().__init__(url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)
        self.connection = connection
        self._now = now

    def load(self, key: str, id: str = "", limit: int = 1) -> Loaded:
        where = {"of_namespace": self.prefix, "of_key": key, "of_id": id}
        row = self.connection.execute(statements.lock, where).one()
        now = self._now()
        tombstone = row.token if (row.until or 0) > now else None
        if row.version is None:
            return Loaded(0, now, Document(1, row.floor, (), row.epoch), Line(tombstone=tombstone))
        kept_limit, holders = _read(row.document)
        _check_whole(row.version, row.fence, row.waiting, row.aside, row.behind, row.due or 0)
        document = Document(kept_limit, max(row.fence, row.floor), holders, row.epoch)
        line = Line(tombstone=tombstone)
        if row.waiting or row.aside or row.behind:
            line = self._line(where, row, reach(document, limit), tombstone)
        return Loaded(row.version, now, document, line, row.aside, row.due)

    def _line(self, where: dict[str, Any], lock: Any, count: int, tombstone: str | None) -> Line:
        def part(state: State, count: int) -> tuple[Entry, ...]:
            some = {**where, "of_state": state, "count": count}
            return tuple(map(_entry, self.connection.execute(statements.line_part, some)))

        head = part("waiting", count) if lock.waiting else ()
        aside = part("aside", count) if lock.aside else ()
        behind = part("behind", lock.behind) if lock.behind else ()
        own, ahead = None, lock.waiting
        for place, entry in enumerate(head):
            if entry.id == where["of_id"]:
                own, ahead = entry, place
        if not own and where["of_id"] and (lock.waiting > len(head) or aside or behind):
            found = self.connection.execute(statements.entry, where).first()
            own, ahead = (_entry(found), found.ahead) if found else (None, lock.waiting)
        return Line(lock.waiting, head, aside, behind, own, ahead, tombstone)

    def swap(self, key: str, version: int, change: Change) -> bool:
        if change.is_none:
            return True
        where = {"of_namespace": self.prefix, "of_key": key}
        transition = change.transition
        waiting, aside, behind = change.counts()
        holders = transition.document.holders
        values: dict[str, Any] = {
            "version": version + 1,
            "fence": transition.document.fence,
            "due": transition.due,
            "ends": None if waiting or aside or behind else _end(holders),
            "waiting": waiting,
            "aside": aside,
            "behind": behind,
            "document": _text(transition.document.limit, holders),
        }
        if not version:
            new = {"namespace": self.prefix, "key": key}
            self.connection.execute(statements.insert_lock, {**new, **values})
        elif not self._changes(statements.change_lock, {**where, "of_version": version, **values}):
            return False
        self._swap_line(key, where, change)
        if transition.tombstone is not None:
            self._bury(key, change.id, {"until": change.tombstone_until, "token": transition.tombstone})
        return True

    def _swap_line(self, key: str, where: dict[str, Any], change: Change) -> None:
        known = change.known
        for entry in change.transition.entries:
            values: dict[str, Any] = {
                "seq": entry.seq,
                "offer_until": entry.offer_until,
                "offers": entry.offers,
                "state": entry.state,
                "place": entry.offer_until if entry.state == "aside" else entry.seq,
            }
            if entry.id == change.id and change.message is not None:
                values["message"] = change.message
            if entry.id in known:
                self.connection.execute(statements.change_entry, {**where, "of_id": entry.id, **values})
            else:
                new = {"namespace": self.prefix, "key": key, "id": entry.id}
                self.connection.execute(statements.insert_entry, {**new, **values})
        for id in change.transition.removed:
            self.connection.execute(statements.delete_entry, {**where, "of_id": id})

    def _bury(self, key: str, id: str, values: dict[str, Any]) -> None:
        where = {"of_namespace": self.prefix, "of_key": key, "of_id": id}
        if not self._changes(statements.change_tombstone, {**where, **values}):
            new = {"namespace": self.prefix, "key": key, "id": id}
            self.connection.execute(statements.insert_tombstone, {**new, **values})

    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        where = {"of_namespace": self.prefix, "of_key": key, "of_ids": ids}
        return {row.id: row.message for row in self.connection.execute(statements.messages, where)}

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        asked, found = iter(leases), list[bool]()
        while batch := list(islice(asked, _LEASES_PER_STATEMENT)):
            found += self._renew(batch)
        return found

    def _renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        """A renewal touches no line: so all of them are read at once, and changed at once."""
        where = {"of_namespace": self.prefix, "of_keys": sorted({key for key, _ in leases})}
        rows = {row.key: row for row in self.connection.execute(statements.renewed_locks, where)}
        now = self._now()
        kept = {}
        for key, row in rows.items():
            with suppress(Damaged):  # the others must not lose their leases for it
                kept[key] = _read(row.document)
        documents = {key: Document(limit, holders=holders) for key, (limit, holders) in kept.items()}
        found = []
        for key, renewal in leases:
            transition = step(documents.get(key, Document()), Line(), renewal, now, self.offer)
            found.append(transition.answer == Done(True))
            if found[-1]:
                documents[key] = transition.document
        changes = [
            {
                "of_namespace": self.prefix,
                "of_key": key,
                "version": rows[key].version + 1,
                "ends": None if rows[key].ends is None else _end(documents[key].holders),
                "document": _text(documents[key].limit, documents[key].holders),
            }
            for key in sorted({key for (key, _), is_found in zip(leases, found, strict=True) if is_found})
        ]
        if changes:
            self.connection.execute(statements.renew_lock, changes)
        return found

    def due(self, limit: int, every: int) -> list[str] | None:
        namespace = {"of_namespace": self.prefix}
        row = self.connection.execute(statements.namespace, namespace).one()
        now = self._now()
        if row.reaped <= now < row.reaped + every:  # not after a clock that went back
            return None
        time = {**namespace, "of_time": now}
        ended = self.connection.execute(statements.ended_locks, {**time, "count": _ENDED_PER_SWEEP}).all()
        values = {"reaped": now, "fence": max([row.fence, *(lock.fence for lock in ended)])}
        self.connection.execute(statements.change_namespace, {**namespace, **values})
        if ended:
            keys = [{**namespace, "of_key": lock.key} for lock in ended]
            self.connection.execute(statements.delete_lock, keys)
        old = {**namespace, "of_time": now - MINUTE, "count": _ENDED_PER_SWEEP}
        if finished := self.connection.execute(statements.ended_tombstones, old).all():
            ids = [{**namespace, "of_key": row.key, "of_id": row.id} for row in finished]
            self.connection.execute(statements.delete_tombstone, ids)
        return list(self.connection.execute(statements.due_keys, {**time, "count": limit}).scalars())

    def set_aside(self, key: str) -> None:
        """Let the reaper leave this key alone for a while."""
        where = {"of_namespace": self.prefix, "of_key": key}
        self.connection.execute(statements.postpone_lock, {**where, "due": self._now() + SET_ASIDE})

    def forget(self, key: str) -> None:
        """Its fences go on from here."""
        where = {"of_namespace": self.prefix, "of_key": key}
        self.connection.execute(statements.delete_line, where)
        self.connection.execute(statements.delete_lock, where)
        row = self.connection.execute(statements.namespace, where).one()
        floor = {"fence": max(row.fence, self._now())}
        self.connection.execute(statements.change_namespace, {"of_namespace": self.prefix, **floor})

    def scan(self, prefix: str = "") -> Iterator[str]:
        keys = self.connection.execute(statements.used_keys, {"of_namespace": self.prefix}).scalars()
        return (key for key in keys if key.startswith(prefix))

    def keep_namespace(self, broker: str, life: int) -> str:
        namespace = {"of_namespace": self.prefix}
        row = self.connection.execute(statements.namespace, namespace).one()
        now = self._now()
        if row.broker not in (None, broker) and row.broker_until > now:
            return str(row.broker)
        values = {"broker": broker, "broker_until": now + life}
        self.connection.execute(statements.change_namespace, {**namespace, **values})
        return broker

    def has_older_locks(self) -> bool:
        return schema.has_older_locks(self.connection, self.prefix, self._now())

    def _changes(self, statement: Any, values: dict[str, Any]) -> bool:
        return bool(self.connection.execute(statement, values).rowcount)


def _check_whole(*numbers: Any) -> None:
    wrong = [number for number in numbers if not isinstance(number, int)]
    if wrong:
        raise Damaged(f"{wrong[0]!r} is no whole number")


def _entry(row: Any) -> Entry:
    _check_whole(row.seq, row.offer_until, row.offers)
    return Entry(row.id, row.seq, row.offer_until, row.offers, row.state)


def _end(holders: Sequence[Holder]) -> int:
    return max((holder.expiry for holder in holders), default=0)


def _text(limit: int, holders: Sequence[Holder]) -> str:
    leases = [{name: getattr(holder, name) for name in _HOLDER} for holder in holders]
    return json.dumps({"limit": limit, "holders": leases})


def _read(text: str) -> tuple[int, tuple[Holder, ...]]:
    try:
        document = json.loads(text)
        limit, holders = document["limit"], tuple(Holder(**lease) for lease in document["holders"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    _check_whole(limit, *(number for holder in holders for number in (holder.expiry, holder.fence)))
    return limit, holders
