"""The tables: the same for every database. Times are whole microseconds of the store's clock.

The names begin with the version of what they keep. A lock whose `ends` has come is nobody's any more: the
reaper deletes it and raises the fence of the namespace, below which no later fence of any key may fall.
"""

from __future__ import annotations

from secrets import token_hex

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    column,
    inspect,
    select,
    table,
)


class AnyText(TypeDecorator[str]):
    """Text of any characters, also NUL and those that are no UTF-8, compared byte by byte."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else value.decode("utf-8", "surrogatepass")


metadata = MetaData()

_OLDER = "exclusive1_"
_older_locks = table(f"{_OLDER}lock", column("namespace", AnyText), column("ends", BigInteger))

namespaces = Table(
    "exclusive2_namespace",
    metadata,
    Column("namespace", AnyText, primary_key=True),
    Column("epoch", Text, nullable=False),  # the store's random mark
    Column("fence", BigInteger, nullable=False),  # the last one of all keys whose rows were deleted
    Column("reaped", BigInteger, nullable=False),  # when a reaper last came
    Column("broker", AnyText),  # to whose workers the namespace belongs, and until when
    Column("broker_until", BigInteger),
)

locks = Table(
    "exclusive2_lock",
    metadata,
    Column("namespace", AnyText, primary_key=True),
    Column("key", AnyText, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("due", BigInteger),  # when the reaper must look at it; may be early, never late
    Column("ends", BigInteger),  # when its last lease ends, 0: it has none; null: it has a line
    Column("waiting", Integer, nullable=False),
    Column("aside", Integer, nullable=False),
    Column("behind", Integer, nullable=False),
    Column("document", Text, nullable=False),  # JSON: limit and holders
    Index("exclusive2_lock_due", "namespace", "due"),
    Index("exclusive2_lock_ends", "namespace", "ends"),
)

line = Table(
    "exclusive2_line",
    metadata,
    Column("namespace", AnyText, primary_key=True),
    Column("key", AnyText, primary_key=True),
    Column("id", AnyText, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("offer_until", BigInteger, nullable=False),
    Column("offers", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("place", BigInteger, nullable=False),  # orders them: offer_until aside, else seq
    Column("message", LargeBinary, nullable=False),
    Index("exclusive2_line_place", "namespace", "key", "state", "place", "id"),
)

tombstones = Table(
    "exclusive2_tombstone",
    metadata,
    Column("namespace", AnyText, primary_key=True),
    Column("key", AnyText, primary_key=True),
    Column("id", AnyText, primary_key=True),
    Column("until", BigInteger, nullable=False),
    Column("token", AnyText, nullable=False),  # of the delivery that finished
    Index("exclusive2_tombstone_until", "namespace", "until"),
)


def has(connection: Connection, namespace: str) -> bool:
    """Whether the tables are there, with the namespace's own row."""
    if not inspect(connection).has_table(namespaces.name):
        return False
    return bool(connection.execute(select(namespaces).where(namespaces.c.namespace == namespace)).first())


def strangers(connection: Connection) -> list[str]:
    """The tables of others in the same database."""
    names = inspect(connection).get_table_names()
    return [name for name in names if name not in metadata.tables and not name.startswith(_OLDER)]


def has_older_locks(connection: Connection, namespace: str, now: int) -> bool:
    """Whether the tables of the first version hold a lease, or a task that waits."""
    if not inspect(connection).has_table(_older_locks.name):
        return False
    is_here = _older_locks.c.namespace == namespace
    ends = _older_locks.c.ends
    return bool(
        connection.execute(select(ends).where(is_here, ends.is_(None) | (ends > now)).limit(1)).first()
    )


def create(connection: Connection, namespace: str) -> None:
    """Make what is missing of them."""
    metadata.create_all(connection)
    if not has(connection, namespace):
        values = {"namespace": namespace, "epoch": token_hex(8), "fence": 0, "reaped": 0}
        connection.execute(namespaces.insert(), values)
