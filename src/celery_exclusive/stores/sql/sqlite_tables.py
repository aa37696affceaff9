"""The tables in SQLite's words, and the tables of other programs in the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex

from celery_exclusive.stores.base import older_version
from celery_exclusive.stores.sql.statements import ADD_NAMESPACE
from celery_exclusive.stores.sql.tables import NAMES, TABLES, VERSION, Words, definitions
from celery_exclusive.stores.sql.transaction import Cursor, Transaction

_WORDS = Words(name="BLOB", id="BLOB", bytes="BLOB", word="TEXT", text="TEXT", small=" WITHOUT ROWID")
_NOT_OF_STRANGERS = ("exclusive1_", "sqlite_", "django_migrations")
_HELD_BY_OLDER = "SELECT 1 FROM exclusive1_lock WHERE namespace = ? AND (ends IS NULL OR ends > ?) LIMIT 1"


def are_made(cursor: Cursor) -> bool:
    return set(TABLES) <= set(_names(cursor))


def is_stamped(cursor: Cursor) -> bool:
    return NAMES[-1] in _names(cursor)


def version(cursor: Cursor) -> object:
    """Return the version of the tables. Those without one are of this version if they have its columns."""
    if is_stamped(cursor):
        cursor.execute("SELECT version FROM exclusive2_version")
        return next((version for (version,) in cursor.fetchall()), None)
    with closing(type(cursor.connection)(":memory:")) as database:
        own = database.cursor()
        for statement in statements():
            own.execute(statement)
        return VERSION if _columns(own) == _columns(cursor) else None


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
    """Yield warnings about the tables of the first version, and of other programs, in the same file."""
    cursor, names = transaction.cursor, _names(transaction.cursor)
    if "exclusive1_lock" in names:
        cursor.execute(_HELD_BY_OLDER, (transaction.namespace, transaction.now))
        if cursor.fetchall():
            yield older_version(transaction.url, "tables exclusive1_*")
    strangers = [name for name in names if name not in NAMES and not name.startswith(_NOT_OF_STRANGERS)]
    if strangers:
        yield (
            f"exclusive_store: {path} has tables of others too ({strangers[0]}): locks and writers of these "
            "tables wait for each other; give locks a file of their own"
        )


def _names(cursor: Cursor) -> list[str]:
    cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in cursor.fetchall()]


def _columns(cursor: Cursor) -> list[list[str]]:
    columns = list[list[str]]()
    for name in TABLES:
        cursor.execute(f"PRAGMA table_info({name})")
        columns.append([column[1] for column in cursor.fetchall()])
    return columns
