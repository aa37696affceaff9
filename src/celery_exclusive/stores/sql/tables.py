"""The tables of locks and lines, for every database. Times are whole microseconds of the store's clock.

The names begin with the version of the tables. Keys, ids and tokens are bytes: their text may have any
characters. A lock whose `ends` has come has no holder and no terms any more: the reaper deletes its row and
raises the fence of the namespace, so that later fences of the key stay above all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from celery_exclusive.errors import OptionError

TABLES = {
    "exclusive2_namespace": """(
        namespace {name} NOT NULL PRIMARY KEY,
        epoch {word} NOT NULL,  -- the store's random mark
        fence BIGINT NOT NULL,  -- the last one of all keys whose rows were deleted
        reaped BIGINT NOT NULL,  -- when a reaper last came
        broker {bytes}, broker_until BIGINT  -- to whose workers the namespace belongs, and until when
    ){small}""",
    "exclusive2_lock": """(
        namespace {name} NOT NULL, key {name} NOT NULL, version BIGINT NOT NULL, fence BIGINT NOT NULL,
        due BIGINT,  -- when the reaper must look at it; may be early, never late; null: it need not
        ends BIGINT,  -- when its last lease and its terms end, 0: it has none; null: line or parts' terms
        waiting INTEGER NOT NULL, aside INTEGER NOT NULL, behind INTEGER NOT NULL,
        shut INTEGER NOT NULL,  -- how many tasks wait for room of their parts, as in its terms
        document {text} NOT NULL,  -- JSON: limit, holders or how many; deadline and queue of its line, terms
        PRIMARY KEY (namespace, key){indexes}
    ){small}""",
    "exclusive2_holder": """(  -- the leases of locks with more than ten
        namespace {name} NOT NULL, key {name} NOT NULL, id {id} NOT NULL, token {bytes} NOT NULL,
        expiry BIGINT NOT NULL, fence BIGINT NOT NULL, may_have_copies INTEGER NOT NULL,
        phase {word} NOT NULL, cost BIGINT NOT NULL, part {name} NOT NULL,
        PRIMARY KEY (namespace, key, id){indexes}
    ){small}""",
    "exclusive2_line": """(
        namespace {name} NOT NULL, key {name} NOT NULL, id {id} NOT NULL,
        seq BIGINT NOT NULL, offer_until BIGINT NOT NULL, offers INTEGER NOT NULL,
        state {word} NOT NULL,  -- of one that waits for room of its part with the mark of that
        place BIGINT NOT NULL,  -- orders them: offer_until aside, else seq, or its place between parts
        deaths INTEGER NOT NULL,  -- how many of its runs were recovered
        deadline BIGINT NOT NULL,  -- when its message expires while it waits; 2**53 - 1: never
        flags INTEGER NOT NULL,  -- 1: it gives up at its deadline; 2: a newer message replaces it; 4: joins
        newer {id},  -- its wait is over, by its deadline (empty) or for this id
        cost BIGINT NOT NULL,  -- the units that its run will hold
        part {name} NOT NULL,
        message {bytes} NOT NULL,
        PRIMARY KEY (namespace, key, id){indexes}
    )""",
    "exclusive2_part": """(  -- the parts of keys that have tasks or terms
        namespace {name} NOT NULL, key {name} NOT NULL, part {name} NOT NULL,
        due BIGINT,  -- when the reaper must look at it; null: it need not
        record {text} NOT NULL,  -- a JSON string: its terms, a line for each, and its numbers
        PRIMARY KEY (namespace, key, part){indexes}
    ){small}""",
    "exclusive2_tombstone": """(
        namespace {name} NOT NULL, key {name} NOT NULL, id {id} NOT NULL, until BIGINT NOT NULL,
        token {bytes} NOT NULL,  -- of the delivery that finished; without a key, the record of a worker
        PRIMARY KEY (namespace, key, id){indexes}
    ){small}""",
}
"""The rows of these tables are small and kept in the index, so a write touches one place fewer."""
ENTRY = (
    "seq",
    "offer_until",
    "offers",
    "state",
    "deaths",
    "deadline",
    "flags",
    "newer",
    "cost",
    "part",
    "place",
)
"""The columns of a line that have the fields of an `Entry`, without its id."""
INDEXES = {
    "exclusive2_lock": ("exclusive2_lock_due", "namespace, due", ""),
    "exclusive2_holder": ("exclusive2_holder_expiry", "namespace, key, expiry, id", " WHERE +expiry > 0"),
    "exclusive2_line": ("exclusive2_line_place", "namespace, key, state, place, id", " WHERE +place > 0"),
    "exclusive2_part": ("exclusive2_part_due", "namespace, key, due, part", " WHERE due IS NOT NULL"),
    "exclusive2_tombstone": ("exclusive2_tombstone_until", "namespace, until", ""),
}
"""The index that each table has besides its primary key, with its condition, which holds for each row but of
parts that are not due.

Without statistics PostgreSQL would find a row by its id in the index that has a key's rows in their order,
and read all of these. It cannot use that index for a statement without the condition. MariaDB and MySQL know
no conditions, and always find a row by its primary key. With the plus SQLite does not search by the condition
in place of a better one.
"""

VERSION = 7  # as in _STAMP
"""The version of these definitions. A table has it: another release may have made the tables."""
_STAMP = (
    "CREATE TABLE IF NOT EXISTS exclusive2_version (version INTEGER NOT NULL PRIMARY KEY){table}",
    "INSERT INTO exclusive2_version SELECT 7 WHERE NOT EXISTS (SELECT 1 FROM exclusive2_version)",
)

NAMES = (*TABLES, "exclusive2_version")


@dataclass(frozen=True)
class Words:
    """A database's words in the definitions: its types, and the ends of its statements."""

    name: str
    """A namespace or a key, of at most 255 bytes."""
    id: str
    bytes: str
    word: str
    """Text of at most 16 characters."""
    text: str
    small: str = ""
    """The end of the statement for a table of small rows."""
    table: str = ""
    """The end of the statement for every table."""
    has_index_in_table: bool = False
    """Whether an index is defined with its table, not by a statement of its own."""


def definitions(words: Words) -> Iterator[str]:
    """Yield the statements that make the tables and indexes, and store their version, unless it is there."""
    for name, columns in TABLES.items():
        index = ""
        if words.has_index_in_table and name in INDEXES:
            index = ",\n        INDEX {} ({})".format(*INDEXES[name][:2])
        yield f"CREATE TABLE IF NOT EXISTS {name} {columns.format(indexes=index, **vars(words))}{words.table}"
    if not words.has_index_in_table:
        for table, (name, columns, condition) in INDEXES.items():
            yield f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns}){condition}"
    yield from (statement.format(table=words.table) for statement in _STAMP)


def refuse_other(url: str, version: object) -> None:
    """Raise OptionError unless this release knows the version of the tables."""
    if version != VERSION:
        raise OptionError(
            f"exclusive_store: {url} has tables of another release of celery-exclusive (version "
            f"{version}, not {VERSION}): run the same release everywhere, or, when all locks are "
            "released, drop the tables exclusive2_*"
        )
