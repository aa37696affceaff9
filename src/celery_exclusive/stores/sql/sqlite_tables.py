"""The tables in SQLite's words, and the tables of other programs in the same file."""

from __future__ import annotations

from secrets import token_hex

from celery_exclusive.stores.sql.statements import ADD_NAMESPACE, NAMESPACE
from celery_exclusive.stores.sql.tables import TABLES, Words, definitions
from celery_exclusive.stores.sql.transaction import Cursor

_WORDS = Words(name="BLOB", id="BLOB", bytes="BLOB", word="TEXT", text="TEXT", small=" WITHOUT ROWID")
_OLDER = "exclusive1_"
_OF_MIGRATIONS = "django_migrations"
_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_HELD_BY_OLDER = "SELECT 1 FROM exclusive1_lock WHERE namespace = ? AND (ends IS NULL OR ends > ?) LIMIT 1"


def has(cursor: Cursor, namespace: bytes) -> bool:
    """Whether the tables are there, with the namespace's own row."""
    if not are_made(cursor):
        return False
    cursor.execute(NAMESPACE, (namespace,))
    return bool(cursor.fetchall())


def are_made(cursor: Cursor) -> bool:
    return "exclusive2_namespace" in _names(cursor)


def create(cursor: Cursor, namespace: bytes) -> None:
    """Create the missing tables."""
    for statement in statements():
        cursor.execute(statement)
    if not has(cursor, namespace):
        cursor.execute(ADD_NAMESPACE, (namespace, token_hex(8)))


def statements() -> list[str]:
    """Return the statements that make the tables, unless they are there."""
    return list(definitions(_WORDS))


def strangers(cursor: Cursor) -> list[str]:
    """Return the names of tables of other programs in the same database."""
    return [
        name
        for name in _names(cursor)
        if name not in TABLES and not name.startswith((_OLDER, "sqlite_", _OF_MIGRATIONS))
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
