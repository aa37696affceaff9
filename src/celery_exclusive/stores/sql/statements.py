"""The statements on the tables. Below some of them stands what their text does not say.

A parameter is named by the column that it is compared with or put into. Where that leaves the order open,
the parameters are listed first. A list in the text, `(?)`, is one for any number of values: see `repeated`.

All databases understand them. A store whose driver writes a parameter otherwise than `?` has a cursor that
translates. The texts are constants, so that a connection parses each of them only once.
"""

from __future__ import annotations

from celery_exclusive.stores.sql.tables import ENTRY

NAMESPACE = "SELECT fence, reaped, broker, broker_until FROM exclusive2_namespace WHERE namespace = ?"

SPACE = """SELECT fence, reaped, epoch, broker, broker_until, (
    SELECT until FROM exclusive2_tombstone AS own WHERE own.namespace = ? AND own.key = ? AND own.id = ?
) FROM exclusive2_namespace WHERE namespace = ?"""
"""namespace, key, id, namespace again. The last column is null without such a record."""
SPACE_AND_TIME = SPACE.replace(") FROM", "), CLOCK FROM")
"""The same, and the server's time."""


ADD_NAMESPACE = """INSERT INTO exclusive2_namespace (namespace, epoch, fence, reaped) VALUES (?, ?, 0, 0)
ON CONFLICT (namespace) DO NOTHING"""

LOOK = """SELECT versions.version, namespaces.epoch FROM exclusive2_version AS versions
LEFT JOIN exclusive2_namespace AS namespaces ON namespaces.namespace = ?"""
"""namespace. The epoch is null if the namespace is new."""

LOCK_NAMESPACE = "SELECT (SELECT fence FROM exclusive2_namespace WHERE namespace = ? FOR UPDATE), CLOCK"
LOCK_NAMESPACE_IF_FREE = LOCK_NAMESPACE.replace("FOR UPDATE", "FOR UPDATE SKIP LOCKED")
LOCK_KEY = "SELECT (SELECT version FROM exclusive2_lock WHERE namespace = ? AND key = ? FOR UPDATE), CLOCK"
"""The time is the server's, after the row was locked."""

RAISE_FENCE = "UPDATE exclusive2_namespace SET fence = ?, reaped = ? WHERE namespace = ?"
KEEP_NAMESPACE = "UPDATE exclusive2_namespace SET broker = ?, broker_until = ? WHERE namespace = ?"

FIND = """SELECT namespaces.epoch, namespaces.fence, locks.version, locks.fence, locks.due, locks.ends,
    locks.waiting, locks.aside, locks.behind, locks.document, tombstones.until, tombstones.token
FROM exclusive2_namespace AS namespaces
LEFT JOIN exclusive2_lock AS locks ON locks.namespace = namespaces.namespace AND locks.key = ?
LEFT JOIN exclusive2_tombstone AS tombstones
    ON tombstones.namespace = namespaces.namespace AND tombstones.key = ? AND tombstones.id = ?
WHERE namespaces.namespace = ?"""
"""key, key again, id, namespace. The row has the fields of `rows.Found`."""

INSERT_LOCK = """INSERT INTO exclusive2_lock
    (version, fence, due, ends, waiting, aside, behind, shut, document, namespace, key)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, namespace, ? FROM exclusive2_namespace WHERE namespace = ? AND fence = ?
ON CONFLICT (namespace, key) DO NOTHING"""
"""version, fence, due, ends, waiting, aside, behind, shut, document, key, namespace, its fence that was read.

Inserts nothing if the key has a row by now, or had one that was deleted since: that raised this fence.
"""

CHANGE_LOCK = """UPDATE exclusive2_lock SET
    version = ?, fence = ?, due = ?, ends = ?, waiting = ?, aside = ?, behind = ?, shut = ?, document = ?
WHERE namespace = ? AND key = ? AND version = ?"""
"""version, fence, due, ends, waiting, aside, behind, shut, document, namespace, key, the version that was
read.

Changes no row that has another version by now.
"""

RENEWED_LOCKS = "SELECT key, version, ends, document FROM exclusive2_lock WHERE namespace = ? AND key IN (?)"
"""namespace, keys. A server leaves out what others keep locked."""

PRESENT_LOCKS = "SELECT key FROM exclusive2_lock WHERE namespace = ? AND key IN (?)"
RENEW_LOCK = "UPDATE exclusive2_lock SET version = ?, ends = ?, document = ? WHERE namespace = ? AND key = ?"
POSTPONE_LOCK = "UPDATE exclusive2_lock SET due = ? WHERE namespace = ? AND key = ?"
CLEAR_LOCK = """UPDATE exclusive2_lock SET version = version + 1, due = ?, ends = 0, document = ?
WHERE namespace = ? AND key = ?"""
DELETE_LOCK = "DELETE FROM exclusive2_lock WHERE namespace = ? AND key = ?"

EACH_HOLDER = """SELECT id, token, expiry, fence, may_have_copies, phase, cost, part FROM exclusive2_holder
WHERE namespace = ? AND key = ?"""
"""namespace, key; rows: the fields of a `Holder`."""
THESE_HOLDERS = f"{EACH_HOLDER} AND id IN (?)"
"""namespace, key, ids; rows: the fields of a `Holder`. See `repeated`. A server leaves out what others keep
locked."""
PRESENT_HOLDERS = "SELECT id FROM exclusive2_holder WHERE namespace = ? AND key = ? AND id IN (?)"
_PARTS_OF_HOLDERS = (
    "SELECT * FROM (EACH AND +expiry > 0 AND expiry > ? ORDER BY expiry, id LIMIT ?) AS next",
    THESE_HOLDERS,
)
HOLDERS = " UNION ALL ".join(_PARTS_OF_HOLDERS).replace("EACH", EACH_HOLDER)
"""namespace, key, a time, count; namespace, key, ids. Rows: the fields of a `Holder`, of some twice.

The holders that expire first after the time, and the holders with these ids. `+expiry > 0` is the condition
of the index, see `tables.INDEXES`; so is `+place > 0` below.
"""
LAST_EXPIRY = """SELECT coalesce((
    SELECT expiry FROM exclusive2_holder WHERE namespace = ? AND key = ? AND +expiry > 0
    ORDER BY expiry DESC LIMIT 1
), 0)"""
HOLDER_COUNT = "SELECT count(*) FROM exclusive2_holder WHERE namespace = ? AND key = ?"
ANY_HOLDER_OR_PART = """SELECT (SELECT 1 FROM exclusive2_holder WHERE namespace = ? LIMIT 1),
    (SELECT 1 FROM exclusive2_part WHERE namespace = ? LIMIT 1)"""
INSERT_HOLDER = """INSERT INTO exclusive2_holder
    (token, expiry, fence, may_have_copies, phase, cost, part, namespace, key, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
CHANGE_HOLDER = """UPDATE exclusive2_holder
SET token = ?, expiry = ?, fence = ?, may_have_copies = ?, phase = ?, cost = ?, part = ?
WHERE namespace = ? AND key = ? AND id = ?"""
DELETE_HOLDER = "DELETE FROM exclusive2_holder WHERE namespace = ? AND key = ? AND id = ?"
DELETE_HOLDERS = "DELETE FROM exclusive2_holder WHERE namespace = ? AND key = ?"

EACH_ENTRY = f"""SELECT id, {", ".join(ENTRY)}
FROM exclusive2_line WHERE namespace = ? AND key = ?"""
"""namespace, key; rows: the fields of an `Entry`."""

LINE_PART = f"{EACH_ENTRY} AND state = ? AND +place > 0 ORDER BY place, id LIMIT ?"
"""namespace, key, state, count. Rows have the fields of an `Entry`."""

LAST = f"{EACH_ENTRY} AND state = 'waiting' AND +place > 0 ORDER BY place DESC, id DESC LIMIT ?"
"""namespace, key, count. Rows have the fields of an `Entry`, of the last in line."""

THESE_ENTRIES = f"{EACH_ENTRY} AND id IN (?)"
"""namespace, key, ids; rows: the fields of an `Entry`. See `repeated`."""
SHUT = f"{EACH_ENTRY} AND state = ? AND part = ? AND +place > 0 ORDER BY place, id LIMIT ?"
"""namespace, key, the state of the part's shut tasks, part, count. Rows have the fields of an `Entry`."""
SHUT_COUNT = """SELECT count(*) FROM exclusive2_line
WHERE namespace = ? AND key = ? AND state >= 'shut' AND state < 'shuu' AND +place > 0"""
LINE_COUNT = """SELECT count(*) FROM exclusive2_line
WHERE namespace = ? AND key = ? AND state = ? AND +place > 0"""

OVERDUE = f"{EACH_ENTRY} AND deadline < ? ORDER BY deadline, id LIMIT ?"
"""namespace, key, NEVER, count. Rows have the fields of an `Entry`, of the messages that expire first."""

_PARTS_OF_PAGE = (
    "SELECT * FROM (PART) AS in_line",
    "SELECT * FROM (PART) AS are_aside",
    "SELECT * FROM (PART) AS of_one_part",
    "SELECT * FROM (REST) AS of_others",
)
_WITH_MESSAGE = EACH_ENTRY.replace("\n", ", message ", 1)
_PART_OF_PAGE = f"""{_WITH_MESSAGE}
    AND state = ? AND +place > 0 AND place >= ? AND (place > ? OR id > ?) ORDER BY place, id LIMIT ?"""
_REST_OF_PAGE = f"""{_WITH_MESSAGE}
    AND state > ? AND state < 'shuu' AND +place > 0 ORDER BY state, place, id LIMIT ?"""
PAGE = " UNION ALL ".join(_PARTS_OF_PAGE).replace("PART", _PART_OF_PAGE).replace("REST", _REST_OF_PAGE)
"""Three times: namespace, key, state, place, place again, id, count; then namespace, key, state, count. Rows:
an `Entry`, its message.

Behind those in line and aside come the shut ones of one part, and then those with a later state.
"""

ANY_ENTRY = "SELECT 1 FROM exclusive2_line WHERE namespace = ? LIMIT 1"
PLACES = "SELECT key, id FROM exclusive2_line WHERE namespace = ? AND state <> 'behind'"

BEFORE = """SELECT count(*) FROM (
    SELECT 1 FROM exclusive2_line
    WHERE namespace = ? AND key = ? AND state = 'waiting' AND +place > 0 AND place <= ?
        AND (place < ? OR id < ?)
    ORDER BY place, id LIMIT ?
) AS counted"""
"""namespace, key, place, place again, id, the most that are counted."""

MESSAGES = "SELECT id, message FROM exclusive2_line WHERE namespace = ? AND key = ? AND id IN (?)"
"""namespace, key, ids."""

_COLUMNS = (*ENTRY, "message", "namespace", "key", "id")
INSERT_ENTRY = f"""INSERT INTO exclusive2_line ({", ".join(_COLUMNS)})
VALUES ({", ".join("?" * len(_COLUMNS))})"""
"""The fields of an `Entry`, message, namespace, key, id."""

CHANGE_ENTRY = f"""UPDATE exclusive2_line
SET {", ".join(f"{column} = ?" for column in ENTRY)}, message = coalesce(?, message)
WHERE namespace = ? AND key = ? AND id = ?"""
"""The same as of INSERT_ENTRY. Without a message it keeps the one that it has."""

DELETE_ENTRY = "DELETE FROM exclusive2_line WHERE namespace = ? AND key = ? AND id = ?"
DELETE_LINE = "DELETE FROM exclusive2_line WHERE namespace = ? AND key = ?"

PARTS = "SELECT part, due, record FROM exclusive2_part WHERE namespace = ? AND key = ?"
THESE_PARTS = f"{PARTS} AND part IN (?)"
SOME_PARTS = f"{PARTS} LIMIT ?"
DUE_PARTS = f"{PARTS} AND due IS NOT NULL ORDER BY due, part LIMIT ?"
PUT_PART = """INSERT INTO exclusive2_part (due, record, namespace, key, part) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (namespace, key, part) DO UPDATE SET due = excluded.due, record = excluded.record"""
DELETE_PART = "DELETE FROM exclusive2_part WHERE namespace = ? AND key = ? AND part = ?"
DELETE_PARTS = "DELETE FROM exclusive2_part WHERE namespace = ? AND key = ?"

INSERT_TOMBSTONE = """INSERT INTO exclusive2_tombstone (namespace, key, id, until, token)
VALUES (?, ?, ?, ?, ?)"""

WORKERS = "SELECT token FROM exclusive2_tombstone WHERE namespace = ? AND key = ? AND until > ?"
"""namespace, key, time."""

DUE_LEASES = """SELECT key, fence, due, ends FROM exclusive2_lock
WHERE namespace = ? AND due <= ? AND ends IS NOT NULL ORDER BY due LIMIT ?"""
"""namespace, time, count."""

ENDED_TOMBSTONES = "SELECT key, id FROM exclusive2_tombstone WHERE namespace = ? AND until <= ? LIMIT ?"
"""namespace, time, count."""
DELETE_TOMBSTONE = "DELETE FROM exclusive2_tombstone WHERE namespace = ? AND key = ? AND id = ?"

DUE_KEYS = """SELECT key FROM exclusive2_lock
WHERE namespace = ? AND due <= ? AND ends IS NULL ORDER BY due, key LIMIT ?"""
"""namespace, time, count."""

NEXT_DUE = """SELECT due FROM exclusive2_lock
WHERE namespace = ? AND due < ? AND ends IS NULL ORDER BY due LIMIT 1"""
"""namespace, time."""

_WITH_TASK = "SELECT key, id FROM exclusive2_{} WHERE namespace = ? AND id >= ? AND id < ?"
ROWS_OF_TASK = f"{_WITH_TASK.format('line')} UNION ALL {_WITH_TASK.format('holder')}"
"""Twice: namespace, the begin of its ids, and what comes after all of these."""
DOCUMENTS_OF_TASK = (
    "SELECT key, document FROM exclusive2_lock WHERE namespace = ? AND document LIKE ? ESCAPE '!'"
)
LINES = """SELECT key, waiting, shut, aside, due, (
    SELECT seq FROM exclusive2_line
    WHERE namespace = exclusive2_lock.namespace AND key = exclusive2_lock.key AND state = 'waiting'
        AND +place > 0
    ORDER BY place, id LIMIT 1
) FROM exclusive2_lock WHERE namespace = ? AND ends IS NULL
    AND NOT (waiting = 0 AND aside = 0 AND behind = 0 AND shut = 0)"""
"""namespace; of each key with entries its counts, when it is due, and since when its first in line waits."""
DELETE_KEY = (DELETE_LINE, DELETE_PARTS, DELETE_HOLDERS, DELETE_LOCK)
USED_KEYS = "SELECT key FROM exclusive2_lock WHERE namespace = ? AND (ends IS NULL OR ends > 0)"


def repeated(statement: str, count: int) -> str:
    """Return the statement with as many parameters as its list has values."""
    return statement.replace("(?)", f"({', '.join('?' * count)})")


def skips_locked(statement: str) -> bool:
    """Whether a server leaves out rows that others keep locked.

    The reaper waits for no other transaction, and one key must not hold up the leases of others.
    """
    return is_of_renewal(statement) or statement in (DUE_LEASES, ENDED_TOMBSTONES, DUE_KEYS)


def is_of_renewal(statement: str) -> bool:
    """Whether it reads rows that a renewal changes."""
    return statement.startswith((RENEWED_LOCKS.partition("(?)")[0], THESE_HOLDERS.partition("(?)")[0]))
