"""The statements on the tables. Below each one stand its parameters in their order, and its row.

All databases understand them. A store whose driver writes a parameter otherwise than `?` has a cursor that
translates. The texts are constants, so that a connection parses each of them only once.
"""

from __future__ import annotations

NAMESPACE = "SELECT fence, reaped, broker, broker_until FROM exclusive2_namespace WHERE namespace = ?"
"""namespace; one row: fence, reaped, broker, broker_until."""

ADD_NAMESPACE = """INSERT INTO exclusive2_namespace (namespace, epoch, fence, reaped) VALUES (?, ?, 0, 0)
ON CONFLICT (namespace) DO NOTHING"""
"""namespace, epoch."""

LOOK = """SELECT versions.version, namespaces.epoch FROM exclusive2_version AS versions
LEFT JOIN exclusive2_namespace AS namespaces ON namespaces.namespace = ?"""
"""namespace; one row: the version of the tables, epoch, null if the namespace is new."""

LOCK_NAMESPACE = "SELECT (SELECT fence FROM exclusive2_namespace WHERE namespace = ? FOR UPDATE), CLOCK"
"""namespace; one row: its fence, and the server's time after the row was locked."""

LOCK_KEY = "SELECT (SELECT version FROM exclusive2_lock WHERE namespace = ? AND key = ? FOR UPDATE), CLOCK"
"""namespace, key; one row: the version of the lock, and the server's time after the row was locked."""

RAISE_FENCE = "UPDATE exclusive2_namespace SET fence = ?, reaped = ? WHERE namespace = ?"
"""fence, reaped, namespace."""

KEEP_NAMESPACE = "UPDATE exclusive2_namespace SET broker = ?, broker_until = ? WHERE namespace = ?"
"""broker, broker_until, namespace."""

FIND = """SELECT namespaces.epoch, namespaces.fence, locks.version, locks.fence, locks.due, locks.ends,
    locks.waiting, locks.aside, locks.behind, locks.document, tombstones.until, tombstones.token
FROM exclusive2_namespace AS namespaces
LEFT JOIN exclusive2_lock AS locks ON locks.namespace = namespaces.namespace AND locks.key = ?
LEFT JOIN exclusive2_tombstone AS tombstones
    ON tombstones.namespace = namespaces.namespace AND tombstones.key = ? AND tombstones.id = ?
WHERE namespaces.namespace = ?"""
"""key, key, id, namespace; one row: the fields of `rows.Found`."""

INSERT_LOCK = """INSERT INTO exclusive2_lock
    (version, fence, due, ends, waiting, aside, behind, document, namespace, key)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, namespace, ? FROM exclusive2_namespace WHERE namespace = ? AND fence = ?
ON CONFLICT (namespace, key) DO NOTHING"""
"""version, fence, due, ends, waiting, aside, behind, document, key, namespace, its fence that was read.

Inserts nothing if the key has a row by now, or had one that was deleted since: that raised this fence.
"""

CHANGE_LOCK = """UPDATE exclusive2_lock SET
    version = ?, fence = ?, due = ?, ends = ?, waiting = ?, aside = ?, behind = ?, document = ?
WHERE namespace = ? AND key = ? AND version = ?"""
"""version, fence, due, ends, waiting, aside, behind, document, namespace, key, the version that was read.

Changes no row that has another version by now.
"""

RENEWED_LOCKS = "SELECT key, version, ends, document FROM exclusive2_lock WHERE namespace = ? AND key IN (?)"
"""namespace, keys; rows: key, version, ends, document. A server leaves out what others keep locked.

See `repeated`.
"""

PRESENT_LOCKS = "SELECT key FROM exclusive2_lock WHERE namespace = ? AND key IN (?)"
"""namespace, keys; rows: key. See `repeated`."""

RENEW_LOCK = "UPDATE exclusive2_lock SET version = ?, ends = ?, document = ? WHERE namespace = ? AND key = ?"
"""version, ends, document, namespace, key."""

POSTPONE_LOCK = "UPDATE exclusive2_lock SET due = ? WHERE namespace = ? AND key = ?"
"""due, namespace, key."""

DELETE_LOCK = "DELETE FROM exclusive2_lock WHERE namespace = ? AND key = ?"
"""namespace, key."""

LINE_PART = """SELECT id, seq, offer_until, offers, state, deaths, deadline FROM exclusive2_line
WHERE namespace = ? AND key = ? AND state = ? ORDER BY place, id LIMIT ?"""
"""namespace, key, state, count; rows: the fields of an `Entry`."""

LINE_COUNT = "SELECT count(*) FROM exclusive2_line WHERE namespace = ? AND key = ? AND state = ?"
"""namespace, key, state; one row: the number of such entries."""

OVERDUE = """SELECT id, seq, offer_until, offers, state, deaths, deadline FROM exclusive2_line
WHERE namespace = ? AND key = ? AND deadline < ? ORDER BY deadline, id LIMIT ?"""
"""namespace, key, NEVER, count; rows: the fields of an `Entry`, of those that expire first."""

ANY_ENTRY = "SELECT 1 FROM exclusive2_line WHERE namespace = ? LIMIT 1"
"""namespace; a row if any message is stored."""

PLACES = "SELECT key, id FROM exclusive2_line WHERE namespace = ? AND state <> 'behind'"
"""namespace; rows: key, id."""

ENTRY = """SELECT id, seq, offer_until, offers, state, deaths, deadline, (
    SELECT count(*) FROM exclusive2_line AS others
    WHERE others.namespace = own.namespace AND others.key = own.key
        AND others.state = 'waiting' AND others.place < own.seq
) FROM exclusive2_line AS own WHERE namespace = ? AND key = ? AND id = ?"""
"""namespace, key, id; at most one row: the fields of an `Entry`, and how many in line stand before it."""

MESSAGES = "SELECT id, message FROM exclusive2_line WHERE namespace = ? AND key = ? AND id IN (?)"
"""namespace, key, ids; rows: id, message. See `repeated`."""

INSERT_ENTRY = """INSERT INTO exclusive2_line
    (seq, offer_until, offers, state, deaths, deadline, place, message, namespace, key, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
"""seq, offer_until, offers, state, deaths, deadline, place, message, namespace, key, id."""

CHANGE_ENTRY = """UPDATE exclusive2_line
SET seq = ?, offer_until = ?, offers = ?, state = ?, deaths = ?, deadline = ?, place = ?,
    message = coalesce(?, message)
WHERE namespace = ? AND key = ? AND id = ?"""
"""The same as of INSERT_ENTRY; without a message it keeps the one that it has."""

DELETE_ENTRY = "DELETE FROM exclusive2_line WHERE namespace = ? AND key = ? AND id = ?"
"""namespace, key, id."""

DELETE_LINE = "DELETE FROM exclusive2_line WHERE namespace = ? AND key = ?"
"""namespace, key."""

INSERT_TOMBSTONE = """INSERT INTO exclusive2_tombstone (namespace, key, id, until, token)
VALUES (?, ?, ?, ?, ?)"""
"""namespace, key, id, until, token."""

DUE_LEASES = """SELECT key, fence, ends, ends <= ? FROM exclusive2_lock
WHERE namespace = ? AND due <= ? AND ends IS NOT NULL ORDER BY due LIMIT ?"""
"""time, namespace, time, count; rows: key, fence, ends, whether that has come."""

ENDED_TOMBSTONES = "SELECT key, id FROM exclusive2_tombstone WHERE namespace = ? AND until <= ? LIMIT ?"
"""namespace, time, count; rows: key, id."""

DELETE_TOMBSTONE = "DELETE FROM exclusive2_tombstone WHERE namespace = ? AND key = ? AND id = ?"
"""namespace, key, id."""

DUE_KEYS = """SELECT key FROM exclusive2_lock
WHERE namespace = ? AND due <= ? AND ends IS NULL ORDER BY due, key LIMIT ?"""
"""namespace, time, count; rows: key."""

USED_KEYS = "SELECT key FROM exclusive2_lock WHERE namespace = ? AND (ends IS NULL OR ends > 0)"
"""namespace; rows: key."""


def repeated(statement: str, count: int) -> str:
    """Return the statement with as many parameters as its list has values."""
    return statement.replace("(?)", f"({', '.join('?' * count)})")
