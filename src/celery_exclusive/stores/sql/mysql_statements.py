"""The statements of MariaDB and MySQL in place of, or besides, those of `statements`."""

from __future__ import annotations

import re
from functools import lru_cache

from celery_exclusive.stores.sql import statements


def _on_clock(statement: str) -> str:
    """Put the server's time in microseconds for CLOCK. `now()` would stand still in a statement."""
    return statement.replace("CLOCK", "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")


SESSION = """SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = 2, lock_wait_timeout = 2, completion_type = 0,
    sql_select_limit = 18446744073709551615;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SELECT VERSION(), @@max_allowed_packet"""
"""What each connection begins with. Another time zone may have the same hour twice."""

BEGIN = _on_clock("SET wait_timeout = 3; START TRANSACTION; SELECT CLOCK")
"""A client that stands still in a transaction is disconnected after so many seconds."""

BEGIN_READING = _on_clock("""SET wait_timeout = 3; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
START TRANSACTION READ ONLY; SELECT CLOCK""")

GRANT = _on_clock("""INSERT INTO exclusive2_lock
    (namespace, `key`, version, fence, due, ends, waiting, aside, behind, document)
SELECT spaces.namespace, %(key)s, %(version)s, LAST_INSERT_ID(GREATEST(spaces.fence + 1, claim.now)),
    claim.now + %(ttl)s, claim.now + %(ttl)s, 0, 0, 0, CONCAT(
        %(before)s, claim.now + %(ttl)s, ', "fence": ', GREATEST(spaces.fence + 1, claim.now), %(after)s
    )
FROM (SELECT COALESCE(%(now)s, CLOCK) AS now LIMIT 1) AS claim
JOIN exclusive2_namespace AS spaces ON spaces.namespace = %(namespace)s
WHERE NOT EXISTS (
    SELECT 1 FROM exclusive2_tombstone AS stones
    WHERE stones.namespace = %(namespace)s AND stones.`key` = %(key)s AND stones.id = %(id)s
        AND stones.until > claim.now
) LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE
    document = IF(IS_FREE, CONCAT(
        %(before)s, VALUES(ends), ', "fence": ', GREATEST(exclusive2_lock.fence + 1, VALUES(fence)), %(after)s
    ), document),
    version = IF(IS_FREE, exclusive2_lock.version + 1, exclusive2_lock.version),
    fence = IF(IS_FREE, LAST_INSERT_ID(
        GREATEST(exclusive2_lock.fence + 1, VALUES(fence))
    ), exclusive2_lock.fence),
    due = IF(IS_FREE, LEAST(due, VALUES(due)), due),
    ends = IF(IS_FREE, VALUES(ends), ends)""").replace(
    "IS_FREE", "exclusive2_lock.ends <= VALUES(ends) - %(ttl)s"
)
"""Changes a row if nobody holds the key, nobody waits there, and the id has not finished; then the last
inserted id is the fence, which comes with the same answer.

Each assignment sees what those before it assigned: the fence follows the document, and `ends`, which all
look at, is last. The namespace's row is locked, since its fence counts: the reaper raises it before it
deletes any row. LIMIT keeps the subquery from being merged, which would read the clock again and again.
"""

RELEASE = _on_clock("""UPDATE exclusive2_lock SET version = version + 1, due = 0, ends = 0,
    document = CONCAT(SUBSTRING_INDEX(document, ', "holders": ', 1), ', "holders": []}')
WHERE namespace = %(namespace)s AND `key` = %(key)s AND ends > COALESCE(%(now)s, CLOCK)
    AND document = CONCAT(
        SUBSTRING_INDEX(document, ', "holders": ', 1), %(before)s, ends, ', "fence": ', fence, %(after)s
    )""")
"""Changes the row if this is its only lease, and nobody waits."""


def _in_turn(statement: str) -> str:
    """Lock first, then read the clock: it would stand still in one statement with --sysdate-is-now."""
    return statement.replace("SELECT (", "").replace("), CLOCK", "; SELECT 0, CLOCK")


_END = "; SET wait_timeout = DEFAULT"
_UNLESS_THERE = " ON DUPLICATE KEY UPDATE "
_INSERT_LOCK = statements.INSERT_LOCK.partition("ON CONFLICT")[0]
_RENEWED_LOCKS = statements.RENEWED_LOCKS.partition("(?)")[0]
_OWN = {
    statements.LOCK_NAMESPACE: _in_turn(statements.LOCK_NAMESPACE),
    statements.LOCK_KEY: _in_turn(statements.LOCK_KEY),
    "COMMIT": f"COMMIT{_END}",
    "ROLLBACK": f"ROLLBACK{_END}",
    statements.ADD_NAMESPACE: statements.ADD_NAMESPACE.partition("ON CONFLICT")[0]
    + f"{_UNLESS_THERE} fence = fence",
    statements.INSERT_LOCK: f"{_INSERT_LOCK} LOCK IN SHARE MODE {_UNLESS_THERE}"
    "version = exclusive2_lock.version",
    statements.DUE_LEASES: f"{statements.DUE_LEASES} FOR UPDATE SKIP LOCKED",
    statements.ENDED_TOMBSTONES: f"{statements.ENDED_TOMBSTONES} FOR UPDATE SKIP LOCKED",
}
"""The reaper locks what it will delete, and waits for nobody."""


@lru_cache(1000)
def translated(statement: str) -> str:
    """Return one of `statements` in the words of these servers, with the locks that it needs."""
    text = _OWN.get(statement, statement)
    if statement.startswith(_RENEWED_LOCKS):
        # By the primary key, in one order: else two heartbeats may wait in a circle, and for other keys.
        text = text.replace("exclusive2_lock", "exclusive2_lock FORCE INDEX (PRIMARY)")
        text = f"{text} ORDER BY key FOR UPDATE"
    return _on_clock(re.sub(r"\bkey\b", "`key`", text)).replace("?", "%s")
