"""The statements of MariaDB and MySQL that replace `statements`, or that only these servers have."""

from __future__ import annotations

import re
from functools import lru_cache

from celery_exclusive.stores.sql import statements


def _on_clock(statement: str) -> str:
    """Put the server's time in microseconds for CLOCK. `now()` would stand still in a statement."""
    return statement.replace("CLOCK", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))")


SESSION = """SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = 2, lock_wait_timeout = 2, completion_type = 0,
    sql_select_limit = 18446744073709551615;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SELECT VERSION(), @@max_allowed_packet"""
"""The first statements of each connection. A time zone other than UTC may have the same hour twice."""

DURABILITY = "SELECT @@innodb_flush_log_at_trx_commit"
"""MariaDB has a 3, too, which writes as much as 1 does."""

BEGIN = _on_clock("SET wait_timeout = 3; START TRANSACTION; SELECT CLOCK")
"""A client that stands still in a transaction is disconnected after so many seconds."""

BEGIN_READING = _on_clock("""SET wait_timeout = 3; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; SELECT CLOCK""")
"""The data are not younger than the time, else a lease that has ended meanwhile would seem to live."""

FLOOR = "SELECT max(fence) INTO @exclusive_floor FROM exclusive2_namespace WHERE namespace = %(namespace)s"
"""The first statement of the request that has GRANT, since an INSERT that reads the namespace's row locks it.
The variable is null if that row is gone.
"""

GRANT = _on_clock("""INSERT INTO exclusive2_lock
    (namespace, `key`, version, ends, fence, due, waiting, aside, behind, shut, document)
VALUES (
    %(namespace)s, %(key)s, %(version)s, COALESCE(%(now)s, CLOCK) + %(ttl)s,
    GREATEST(ends - %(ttl)s, IF(EXISTS (
        SELECT 1 FROM exclusive2_tombstone AS stones
        WHERE stones.namespace = %(namespace)s AND stones.`key` = %(key)s AND stones.id = %(id)s
            AND stones.until > COALESCE(%(now)s, CLOCK)
        LOCK IN SHARE MODE
    ), NULL, @exclusive_floor + 1)), ends, 0, 0, 0, 0,
    CONCAT(%(before)s, ends, ', "fence": ', LAST_INSERT_ID(fence), %(after)s)
) ON DUPLICATE KEY UPDATE
    version = IF(ends <= VALUES(ends) - %(ttl)s AND NOT EXISTS (
        SELECT 1 FROM exclusive2_tombstone AS newer
        WHERE newer.namespace = exclusive2_lock.namespace AND newer.`key` = exclusive2_lock.`key`
            AND newer.id = %(id)s AND newer.until > COALESCE(%(now)s, CLOCK)
        LOCK IN SHARE MODE
    ) AND NOT EXISTS (
        SELECT 1 FROM exclusive2_part AS parts
        WHERE parts.namespace = exclusive2_lock.namespace AND parts.`key` = exclusive2_lock.`key`
        LOCK IN SHARE MODE
    ), VALUES(version), exclusive2_lock.version),
    ends = IF(IS_FREE, VALUES(ends), ends),
    fence = IF(IS_FREE, GREATEST(fence + 1, VALUES(fence)), fence),
    due = IF(IS_FREE, LEAST(due, ends), due),
    document = IF(
        IS_FREE, CONCAT(%(before)s, ends, ', "fence": ', LAST_INSERT_ID(fence), %(after)s), document
    )""").replace("IS_FREE", "version = VALUES(version)")
"""Changes a row if the key has neither holder, line nor parts. The last inserted id is then the fence, which
comes with the same answer. If the id has finished, or without the namespace's row, there is no fence, and the
server refuses the row. The namespace's fence is read without a lock, see `Transaction.end_leases`.

Each assignment sees the values of the assignments before it: once the version is the new one, which is
random, the key was free. The tombstones are read again when the key's row is locked, since its last change
may have come with one. An INSERT of the result of a SELECT would take the optimizer longer than all the rest.
"""

RELEASE = _on_clock("""UPDATE exclusive2_lock FORCE INDEX (PRIMARY) SET
    version = version + 1, due = 0, ends = 0,
    document = CONCAT(SUBSTRING_INDEX(document, ', "holders": ', 1), ', "holders": []}')
WHERE namespace = %(namespace)s AND `key` = %(key)s AND ends > COALESCE(%(now)s, CLOCK)
    AND document = CONCAT(
        SUBSTRING_INDEX(document, ', "holders": ', 1), %(before)s, ends, ', "fence": ', fence, %(after)s
    )""")
"""Changes the row if this is its only lease, and no task waits. FORCE spares the choice of an index."""


def _in_turn(statement: str) -> str:
    """Split the lock and the clock into two statements: with --sysdate-is-now it stands still in one.

    The first column of the second one is null if there was no row to lock.
    """
    return statement.replace("SELECT (", "").replace("), CLOCK", "; SELECT NULLIF(FOUND_ROWS(), 0), CLOCK")


_END = "; SET wait_timeout = DEFAULT"
_UNLESS_THERE = " ON DUPLICATE KEY UPDATE "
_INSERT_LOCK = statements.INSERT_LOCK.partition("ON CONFLICT")[0]
_PART_OF_UNION = re.compile(r"SELECT \* FROM \((.*?)\) AS \w+", re.DOTALL)
"""A part with an order and a limit of its own. As a table it would be copied, to disk if it has bytes."""
_OWN = {
    **{
        statement: _in_turn(statement)
        for statement in (statements.LOCK_NAMESPACE, statements.LOCK_NAMESPACE_IF_FREE)
    },
    statements.LOCK_KEY: _in_turn(statements.LOCK_KEY),
    "COMMIT": f"COMMIT{_END}",
    "ROLLBACK": f"ROLLBACK{_END}",
    statements.ADD_NAMESPACE: statements.ADD_NAMESPACE.partition("ON CONFLICT")[0]
    + f"{_UNLESS_THERE} fence = fence",
    statements.INSERT_LOCK: f"{_INSERT_LOCK}{_UNLESS_THERE}version = exclusive2_lock.version",
    statements.PUT_PART: statements.PUT_PART.partition("ON CONFLICT")[0]
    + f"{_UNLESS_THERE}due = VALUES(due), record = VALUES(record)",
}


@lru_cache(1000)
def translated(statement: str) -> str:
    """Return one of `statements` in the words of these servers, with the locks that it needs."""
    text = _OWN.get(statement, statement)
    if statements.is_of_renewal(statement):  # by the primary key: else it would lock other rows
        text = text.replace(" WHERE", " FORCE INDEX (PRIMARY) WHERE").replace(
            "\nWHERE", " FORCE INDEX (PRIMARY) WHERE"
        )
    text = _PART_OF_UNION.sub(r"(\1)", text)
    if statements.skips_locked(statement):
        text += " FOR UPDATE SKIP LOCKED"
    return _on_clock(re.sub(r"\bkey\b", "`key`", text)).replace("?", "%s")
