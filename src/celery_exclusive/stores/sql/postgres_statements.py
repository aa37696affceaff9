"""The statements of PostgreSQL that replace `statements`, or that only PostgreSQL has."""

from __future__ import annotations

from functools import lru_cache

from celery_exclusive.stores.sql import statements
from celery_exclusive.stores.sql.tables import NAMES


def _on_clock(statement: str) -> str:
    """Put the server's time in microseconds for CLOCK. `now()` would stand still in a transaction."""
    return statement.replace("CLOCK", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


BEGIN = _on_clock("""BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '2s';
SET LOCAL statement_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '3s'; SELECT CLOCK""")
"""The limits end with the transaction: a pooler may give the next one to another client."""

BEGIN_READING = _on_clock("""BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = '3s'; SELECT CLOCK""")

LOCK_TABLES = "SELECT pg_advisory_xact_lock(7310854263018549)"
"""A number that no other program should use."""

FOREIGN = f"""SELECT array_agg(DISTINCT pg_get_userbyid(relowner)::text)
FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = relnamespace
JOIN pg_database ON datname = current_database()
JOIN pg_roles ON rolname = current_user
WHERE pg_class.oid IN ({", ".join(f"to_regclass('{name}')" for name in NAMES)})
    AND relowner <> pg_roles.oid
    AND NOT pg_has_role(relowner, nspowner, 'MEMBER') AND NOT pg_has_role(relowner, datdba, 'MEMBER')
    AND (rolsuper OR NOT pg_has_role(relowner, 'MEMBER'))"""  # noqa: S608 - the names are ours
"""Which other roles own the tables, and neither the schema nor the database, nor are superusers.

Triggers and views that a role has put there run with the rights of this store's user. A superuser counts as a
member of every role.
"""

ABOUT = f"SELECT current_setting('server_version_num')::int, pg_backend_pid(), ({FOREIGN})"
"""Is asked before any other statement, since a table may be a view of another role."""

IS_REPLICA = "SELECT pg_is_in_recovery()"

DURABILITY = (
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') ORDER BY name"
)

GRANT = _on_clock("""WITH claim AS MATERIALIZED (
    SELECT coalesce(%(now)s::bigint, CLOCK) AS now, %(ttl)s::bigint AS ttl, %(namespace)s::bytea AS namespace,
        %(key)s::bytea AS key, %(id)s::bytea AS id, %(before)s::text AS before, %(after)s::text AS after
)
INSERT INTO exclusive2_lock AS lock
    (namespace, key, version, fence, due, ends, waiting, aside, behind, shut, document)
SELECT spaces.namespace, claim.key, %(version)s, greatest(spaces.fence + 1, now), now + ttl, now + ttl,
    0, 0, 0, 0, before || (now + ttl) || ', "fence": ' || greatest(spaces.fence + 1, now) || after
FROM claim JOIN exclusive2_namespace AS spaces ON spaces.namespace = claim.namespace
WHERE NOT EXISTS (
    SELECT FROM exclusive2_tombstone AS stones
    WHERE stones.namespace = claim.namespace AND stones.key = claim.key AND stones.id = claim.id
        AND until + 0 > now
) AND NOT EXISTS (
    SELECT FROM exclusive2_lock AS busy
    WHERE busy.namespace = claim.namespace AND busy.key = claim.key AND (busy.ends > now OR busy.ends IS NULL)
)
ON CONFLICT (namespace, key) DO UPDATE SET
    version = lock.version + 1,
    fence = greatest(lock.fence + 1, excluded.fence),
    due = least(lock.due, excluded.due),
    ends = excluded.ends,
    document = %(before)s || excluded.ends
        || ', "fence": ' || greatest(lock.fence + 1, excluded.fence) || %(after)s
WHERE lock.ends <= excluded.ends - %(ttl)s AND lock.version = (
    SELECT seen.version FROM exclusive2_lock AS seen
    WHERE seen.namespace = excluded.namespace AND seen.key = excluded.key
) AND NOT EXISTS (
    SELECT FROM exclusive2_part AS parts
    WHERE parts.namespace = excluded.namespace AND parts.key = excluded.key
)
RETURNING fence""")
"""One row, the fence, if the key has neither holder, line nor parts, and the id has not finished.

The namespace's fence is read without a lock, see `Transaction.end_leases`. The version `seen` is as old as
the tombstones that were read: a row that was changed while the statement waited for it is left alone, since
its change may have come with a tombstone.
`until + 0` keeps the index on `until` out of the plan: it has every tombstone of the namespace.
"""

RELEASE = _on_clock("""UPDATE exclusive2_lock SET version = version + 1, due = 0, ends = 0,
    document = split_part(document, ', "holders": ', 1) || ', "holders": []}'
WHERE namespace = %(namespace)s AND key = %(key)s AND ends > coalesce(%(now)s::bigint, CLOCK)
    AND document = split_part(document, ', "holders": ', 1)
        || %(before)s || ends || ', "fence": ' || fence || %(after)s""")
"""Changes the row if this is its only lease, and no task waits."""


@lru_cache(1000)
def translated(statement: str) -> str:
    """Return one of `statements`, with the locks on rows that it needs beside others."""
    if statements.skips_locked(statement):
        statement += " FOR UPDATE SKIP LOCKED"
    return _on_clock(statement).replace("?", "%s")
