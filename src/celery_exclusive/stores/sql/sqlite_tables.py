"""The tables as SQLite has them. Times are whole microseconds of the store's clock.

The names begin with the version of what they keep. Keys, ids and tokens are bytes: their text may have any
characters. A lock whose `ends` has come is nobody's any more: the reaper deletes it and raises the fence of
the namespace, below which no later fence of any key may fall.
"""

from __future__ import annotations

from secrets import token_hex

from celery_exclusive.stores.sql.statements import ADD_NAMESPACE, NAMESPACE
from celery_exclusive.stores.sql.transaction import Cursor

TABLES = {
    "exclusive2_namespace": """(
        namespace BLOB NOT NULL PRIMARY KEY,
        epoch TEXT NOT NULL,  -- the store's random mark
        fence BIGINT NOT NULL,  -- the last one of all keys whose rows were deleted
        reaped BIGINT NOT NULL,  -- when a reaper last came
        broker BLOB, broker_until BIGINT  -- to whose workers the namespace belongs, and until when
    ) WITHOUT ROWID""",
    "exclusive2_lock": """(
        namespace BLOB NOT NULL, key BLOB NOT NULL, version BIGINT NOT NULL, fence BIGINT NOT NULL,
        due BIGINT,  -- when the reaper must look at it; may be early, never late; null: it need not
        ends BIGINT,  -- when its last lease ends, 0: it has none; null: it has a line
        waiting INTEGER NOT NULL, aside INTEGER NOT NULL, behind INTEGER NOT NULL,
        document TEXT NOT NULL,  -- JSON: limit and holders
        PRIMARY KEY (namespace, key)
    ) WITHOUT ROWID""",
    "exclusive2_line": """(
        namespace BLOB NOT NULL, key BLOB NOT NULL, id BLOB NOT NULL,
        seq BIGINT NOT NULL, offer_until BIGINT NOT NULL, offers INTEGER NOT NULL, state TEXT NOT NULL,
        place BIGINT NOT NULL,  -- orders them: offer_until aside, else seq
        message BLOB NOT NULL,
        PRIMARY KEY (namespace, key, id)
    )""",
    "exclusive2_tombstone": """(
        namespace BLOB NOT NULL, key BLOB NOT NULL, id BLOB NOT NULL, until BIGINT NOT NULL,
        token BLOB NOT NULL,  -- of the delivery that finished
        PRIMARY KEY (namespace, key, id)
    ) WITHOUT ROWID""",
}
"""Small rows are kept where their keys are: so a write touches one place fewer."""
INDEXES = {
    "exclusive2_lock_due": "exclusive2_lock (namespace, due)",
    "exclusive2_line_place": "exclusive2_line (namespace, key, state, place, id)",
    "exclusive2_tombstone_until": "exclusive2_tombstone (namespace, until)",
}
_OLDER = "exclusive1_"
_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_HELD_BY_OLDER = "SELECT 1 FROM exclusive1_lock WHERE namespace = ? AND (ends IS NULL OR ends > ?) LIMIT 1"


def has(cursor: Cursor, namespace: bytes) -> bool:
    """Whether the tables are there, with the namespace's own row."""
    if "exclusive2_namespace" not in _names(cursor):
        return False
    cursor.execute(NAMESPACE, (namespace,))
    return bool(cursor.fetchall())


def create(cursor: Cursor, namespace: bytes) -> None:
    """Make what is missing of them."""
    for name, columns in TABLES.items():
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}")
    for name, columns in INDEXES.items():
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")
    if not has(cursor, namespace):
        cursor.execute(ADD_NAMESPACE, (namespace, token_hex(8)))


def strangers(cursor: Cursor) -> list[str]:
    """The tables of others in the same database."""
    return [
        name for name in _names(cursor) if name not in TABLES and not name.startswith((_OLDER, "sqlite_"))
    ]


def has_older_locks(cursor: Cursor, namespace: bytes, now: int) -> bool:
    """Whether the tables of the first version hold a lease, or a task that waits."""
    if "exclusive1_lock" not in _names(cursor):
        return False
    cursor.execute(_HELD_BY_OLDER, (namespace, now))
    return bool(cursor.fetchall())


def _names(cursor: Cursor) -> list[str]:
    cursor.execute(_NAMES)
    return [name for (name,) in cursor.fetchall()]
