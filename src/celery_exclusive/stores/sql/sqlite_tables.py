"""The tables in SQLite's words, and the tables of other programs in the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

from celery_exclusive.stores.sql.statements import ADD_NAMESPACE
from celery_exclusive.stores.sql.tables import NAMES, Words, definitions
from celery_exclusive.stores.sql.transaction import Cursor, Transaction

_WORDS = Words(name="BLOB", id="BLOB", bytes="BLOB", word="TEXT", text="TEXT", small=" WITHOUT ROWID")
_NOT_OF_STRANGERS = ("sqlite_", "django_migrations")


def are_made(cursor: Cursor) -> bool:
    return set(NAMES) <= set(_names(cursor))


def version(cursor: Cursor) -> object:
    """Return the version of the tables."""
    cursor.execute("SELECT version FROM exclusive2_version")
    return next((version for (version,) in cursor.fetchall()), None)


def create(cursor: Cursor, namespace: bytes) -> None:
    """Create what is missing of the tables, and the row of the namespace."""
    cursor.execute("BEGIN IMMEDIATE")
    for statement in statements():
        cursor.execute(statement)
    cursor.execute(ADD_NAMESPACE, (namespace, token_hex(8)))
    cursor.execute("COMMIT")


def statements() -> list[str]:
    """Return the statements that make the tables, unless they are there."""
    return list(definitions(_WORDS))


def warnings(transaction: Transaction, path: Path) -> Iterator[str]:
    """Yield warnings about tables of other programs in the same file."""
    names = _names(transaction.cursor)
    strangers = [name for name in names if name not in NAMES and not name.startswith(_NOT_OF_STRANGERS)]
    if strangers:
        yield (
            f"exclusive_store: {path} has tables of others too ({strangers[0]}): locks and writers of these "
            "tables wait for each other; give locks a file of their own"
        )


def _names(cursor: Cursor) -> list[str]:
    cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in cursor.fetchall()]
