"""A transaction of SQLite: it grants a free key, and releases its only lease, in one statement."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from celery_exclusive.core.operations import Acquire, Granted, Operation, Release
from celery_exclusive.core.records import Document, Holder
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.sql import rows
from celery_exclusive.stores.sql.transaction import RELEASED, Cursor, Transaction, new_version
from celery_exclusive.stores.text import to_bytes

GRANT = """INSERT INTO exclusive2_lock AS lock
    (namespace, key, version, fence, due, ends, waiting, aside, behind, shut, document)
SELECT namespace, ?, ?, ?, 0, ?, 0, 0, 0, 0, ? FROM exclusive2_namespace
WHERE namespace = ? AND fence < ? AND NOT EXISTS (
    SELECT 1 FROM exclusive2_tombstone AS stones
    WHERE stones.namespace = exclusive2_namespace.namespace AND stones.key = ? AND id = ? AND until > ?
)
ON CONFLICT (namespace, key) DO UPDATE SET
    version = version + 1, fence = excluded.fence, ends = excluded.ends, document = excluded.document
WHERE ends <= excluded.fence AND lock.fence < excluded.fence AND NOT EXISTS (
    SELECT 1 FROM exclusive2_part AS parts WHERE parts.namespace = lock.namespace AND parts.key = lock.key
)"""
"""key, version, time, ends, document, namespace, time, key, id, time.

Writes the row if the key has neither holder, line, parts nor terms, the id has not finished, and the time can
be the fence.
`due` is early, so that neither this statement nor RELEASE changes the index on it: the reaper corrects it if
the lease is still there at its next sweep.
"""

RELEASE = """UPDATE exclusive2_lock SET version = version + 1, ends = 0,
    document = substr(document, 1, instr(document, ', "holders": ') - 1) || ', "holders": []}'
WHERE namespace = ? AND key = ? AND ends > ? AND due = 0
    AND document = substr(document, 1, instr(document, ', "holders": ') - 1)
        || ? || ends || ', "fence": ' || fence || ?"""
"""namespace, key, time, and `rows.around_lone_expiry`.

Changes the row if this is its only lease, of one unit, the key has no terms, no task waits, and no copy of
its message can come.
"""

_inherited: list[SqliteTransaction] = []
"""Connections of a parent that forked behind Python's back. Closing them would do harm, too."""


class SqliteTransaction(Transaction):
    """A transaction that tries one statement first, and loads the key only if that does not suffice.

    Parameters:
        path: of the file that the cursor's connection has just opened.
    """

    def __init__(self, cursor: Cursor, path: Path, url: str, *, prefix: str, **times: int) -> None:
        super().__init__(cursor, url, prefix=prefix, **times)
        self._pid, self._path, self._file = os.getpid(), str(path), path.stat()

    def is_current(self) -> bool:
        """Whether this process has opened it, and the file at the path is still that, not a new one."""
        try:
            return self._pid == os.getpid() and os.path.samestat(self._file, os.stat(self._path))  # noqa: PTH116 - quicker
        except OSError:
            return False

    def close(self) -> None:
        """Roll back and close. A cursor that a traceback holds would else keep the transaction open."""
        if self._pid != os.getpid():
            _inherited.append(self)
            return
        with suppress(sqlite3.Error):
            self.connection.rollback()
        self.connection.close()

    def apply(self, key: str, operation: Operation) -> Reply:
        reply = None
        if isinstance(operation, Acquire):
            reply = self._grant(to_bytes(key), operation)
        elif isinstance(operation, Release):
            reply = self._release(to_bytes(key), operation)
        return reply or super().apply(key, operation)

    def _grant(self, key: bytes, op: Acquire) -> Reply | None:
        if op.limit < 1 or op.recovers or op.cost > 1 or op.rates or op.part:
            return None
        now, ends = self.now, self.now + op.ttl
        holder = Holder(op.id, op.token, ends, now, op.may_be_in_line)
        text = rows.write_document(Document(op.limit, holders=(holder,)))
        values = (key, new_version(), now, ends, text, self.namespace, now, key, to_bytes(op.id), now)
        self.cursor.execute(GRANT, values)
        return Reply(Granted(now)) if self.cursor.rowcount else None

    def _release(self, key: bytes, op: Release) -> Reply | None:
        lease = rows.around_lone_expiry(op.id, op.token)
        self.cursor.execute(RELEASE, (self.namespace, key, self.now, *lease))
        return RELEASED if self.cursor.rowcount else None
