"""The tables of locks and lines, for every database. Times are whole microseconds of the store's clock.

The names begin with the version of what they keep. Keys, ids and tokens are bytes: their text may have any
characters. A lock whose `ends` has come is nobody's any more: the reaper deletes it and raises the fence of
the namespace, below which no later fence of any key may fall.
"""

from __future__ import annotations

from collections.abc import Iterator

TABLES = {
    "exclusive2_namespace": """(
        namespace {bytes} NOT NULL PRIMARY KEY,
        epoch TEXT NOT NULL,  -- the store's random mark
        fence BIGINT NOT NULL,  -- the last one of all keys whose rows were deleted
        reaped BIGINT NOT NULL,  -- when a reaper last came
        broker {bytes}, broker_until BIGINT  -- to whose workers the namespace belongs, and until when
    ){small}""",
    "exclusive2_lock": """(
        namespace {bytes} NOT NULL, key {bytes} NOT NULL, version BIGINT NOT NULL, fence BIGINT NOT NULL,
        due BIGINT,  -- when the reaper must look at it; may be early, never late; null: it need not
        ends BIGINT,  -- when its last lease ends, 0: it has none; null: it has a line
        waiting INTEGER NOT NULL, aside INTEGER NOT NULL, behind INTEGER NOT NULL,
        document TEXT NOT NULL,  -- JSON: limit and holders
        PRIMARY KEY (namespace, key)
    ){small}""",
    "exclusive2_line": """(
        namespace {bytes} NOT NULL, key {bytes} NOT NULL, id {bytes} NOT NULL,
        seq BIGINT NOT NULL, offer_until BIGINT NOT NULL, offers INTEGER NOT NULL, state TEXT NOT NULL,
        place BIGINT NOT NULL,  -- orders them: offer_until aside, else seq
        message {bytes} NOT NULL,
        PRIMARY KEY (namespace, key, id)
    )""",
    "exclusive2_tombstone": """(
        namespace {bytes} NOT NULL, key {bytes} NOT NULL, id {bytes} NOT NULL, until BIGINT NOT NULL,
        token {bytes} NOT NULL,  -- of the delivery that finished
        PRIMARY KEY (namespace, key, id)
    ){small}""",
}
"""Small rows are kept where their keys are: so a write touches one place fewer."""
INDEXES = {
    "exclusive2_lock_due": "exclusive2_lock (namespace, due)",
    "exclusive2_line_place": "exclusive2_line (namespace, key, state, place, id)",
    "exclusive2_tombstone_until": "exclusive2_tombstone (namespace, until)",
}

VERSION = 1  # as in _STAMP
"""Of these definitions. A server's tables have it in a table of its own: others may have made them."""
_STAMP = (
    "CREATE TABLE IF NOT EXISTS exclusive2_version (version INTEGER NOT NULL PRIMARY KEY)",
    "INSERT INTO exclusive2_version SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM exclusive2_version)",
)


def definitions(**words: str) -> Iterator[str]:
    """Yield the statements that make the tables and indexes, unless they are there.

    Parameters:
        words: the database's words: `bytes`, a type; `small`, what a table of small rows ends with.
    """
    for name, columns in TABLES.items():
        yield f"CREATE TABLE IF NOT EXISTS {name} {columns.format(**words)}"
    for name, columns in INDEXES.items():
        yield f"CREATE INDEX IF NOT EXISTS {name} ON {columns}"


def stamped_definitions(**words: str) -> Iterator[str]:
    """Yield the same, and what stores their version."""
    yield from definitions(**words)
    yield from _STAMP
