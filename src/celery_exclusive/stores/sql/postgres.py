"""postgresql://: PostgreSQL, by its URL, its words and its driver psycopg."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from math import ceil
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import hints
from celery_exclusive.stores.idle import LONGEST
from celery_exclusive.stores.sql import postgres_statements as statements
from celery_exclusive.stores.sql.server import PATIENCE, ServerStore
from celery_exclusive.stores.sql.tables import Words, stamped_definitions
from celery_exclusive.stores.sql.transaction import Cursor
from celery_exclusive.system.deadline import at_most

try:
    import psycopg

    from celery_exclusive.stores.sql import address, postgres_errors
    from celery_exclusive.stores.sql.postgres_connection import Request, TimedConnection, TranslatingCursor
except ImportError:
    raise OptionError(
        "exclusive_store: postgresql:// needs psycopg 3 and SQLAlchemy: "
        "pip install 'celery-exclusive[postgresql]'"
    ) from None

OLDEST = 12_00_00
"""The oldest server that understands the statements, as servers tell their version."""
_WORDS = Words(
    name="BYTEA", id="BYTEA", bytes="BYTEA", word="TEXT", text="TEXT", small=" WITH (fillfactor = 70)"
)
_GRANT, _RELEASE = Request("grant", statements.GRANT), Request("release", statements.RELEASE)


class Postgres:
    """A PostgreSQL server.

    Statements are prepared, since planning one takes longer than running it. Behind a pooler they are not:
    the next transaction may use another connection of the pooler, on which they are not prepared.
    """

    error = psycopg.Error
    trouble = staticmethod(postgres_errors.trouble)

    def __init__(self, url: str, parameters: Callable[[], dict[str, Any]]) -> None:
        self.url, self._parameters = url, parameters

    def connect(self) -> tuple[Any, Cursor]:
        own = {
            "connect_timeout": max(2, ceil(at_most(PATIENCE))),
            "application_name": "celery-exclusive",
            "keepalives_idle": int(LONGEST),
        }
        options = {**own, **self._parameters(), "client_encoding": "utf8"}
        try:
            connection = TimedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        except (TypeError, UnicodeError) as error:
            raise OptionError(
                f"exclusive_store: {self.url}: {error}; after '?' its URL may have the options of libpq"
            ) from None
        cursor = TranslatingCursor(connection.cursor())
        cursor.execute(statements.ABOUT)
        version, pid = cursor.fetchone()
        if version < OLDEST:
            connection.close()
            server = f"PostgreSQL {version // 10000}"
            raise OptionError(hints.too_old(self.url, server, str(OLDEST // 10000)))
        if pid == connection.info.backend_pid:  # a pooler tells a number of its own
            connection.prepare_threshold = 2
        return connection, cursor

    def is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def hint(self, error: Exception) -> str:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) and not self._is_replica():
            return hints.READ_ONLY
        return postgres_errors.hint(error)

    def _is_replica(self) -> bool:
        """Ask on a connection of its own: the error came from another, and says the same of both."""
        try:
            connection, cursor = self.connect()
            with closing(connection):
                cursor.execute(statements.IS_REPLICA)
                return bool(cursor.fetchone()[0])
        except (psycopg.Error, OptionError):
            return True  # it has become one, and is restarting

    def begin(self, cursor: Any, *, writes: bool) -> int:
        cursor.execute(statements.BEGIN if writes else statements.BEGIN_READING)
        while cursor.raw.nextset():
            pass
        return int(cursor.fetchone()[0])

    def definitions(self) -> list[str]:
        return list(stamped_definitions(_WORDS))

    def create_tables(self, cursor: Cursor) -> None:
        self.begin(cursor, writes=True)
        cursor.execute(statements.LOCK_TABLES)
        for statement in self.definitions():
            cursor.execute(statement)
        cursor.execute("COMMIT")

    def grant(self, cursor: Any, claim: dict[str, Any]) -> int | None:
        result = cursor.send(_GRANT, claim)
        return int(result.get_value(0, 0)) if result.ntuples else None

    def release(self, cursor: Any, claim: dict[str, Any]) -> bool:
        return bool(cursor.send(_RELEASE, claim).command_tuples)

    def lossy_settings(self, cursor: Cursor) -> list[tuple[str, str, str]]:
        cursor.execute(statements.DURABILITY)
        return [(name, value, "on") for name, value in cursor.fetchall() if value == "off"]


class PostgresStore(ServerStore):
    """Leases in a PostgreSQL database, in tables of their own.

    Parameters:
        url: as SQLAlchemy reads it: `postgresql://user:password@host/database`. Any driver that it names
            is replaced by psycopg.

    Raises:
        OptionError: the URL is malformed.
    """

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5_000_000, tombstone_ttl: int = 600_000_000
    ) -> None:
        database = Postgres(*address.read(url, "postgresql+psycopg"))
        super().__init__(database, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)
