"""postgresql://: PostgreSQL, by its words and its driver psycopg."""

from __future__ import annotations

from contextlib import closing
from math import ceil
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import hints
from celery_exclusive.stores.idle import LONGEST
from celery_exclusive.stores.sql import postgres_statements as statements
from celery_exclusive.stores.sql.tables import Words, definitions
from celery_exclusive.system.deadline import at_most

try:
    import psycopg

    from celery_exclusive.stores.sql import address, postgres_errors
    from celery_exclusive.stores.sql.postgres_connection import Request, TimedConnection, TranslatingCursor
    from celery_exclusive.stores.sql.server import PATIENCE, ServerStore
except ImportError:
    raise OptionError(
        "exclusive_store: postgresql:// needs psycopg 3 and SQLAlchemy: "
        "pip install 'celery-exclusive[postgresql]'"
    ) from None

OLDEST = 12_00_00
"""The oldest server that understands the statements, as servers tell their version."""
WORDS = Words(
    name="BYTEA", id="BYTEA", bytes="BYTEA", word="TEXT", text="TEXT", small=" WITH (fillfactor = 70)"
)
_GRANT, _RELEASE = Request("grant", statements.GRANT), Request("release", statements.RELEASE)


class PostgresStore(ServerStore):
    """Leases in a PostgreSQL database, in tables of their own.

    Example:
        PostgresStore("postgresql://user:password@host/database")

    Statements are prepared, since planning one takes longer than running it. Behind a pooler they are not:
    the next transaction may use another connection of the pooler, on which they are not prepared.

    `?tables_of=ROLE` in the URL names a role that may own the tables, or several with commas. Without it they
    belong to this user, a role of which it is a member, the owner of the schema or the database, or a
    superuser.
    """

    _driver = "postgresql+psycopg"
    _error = psycopg.Error
    _meaning = staticmethod(postgres_errors.meaning)

    def __init__(self, url: str, **options: Any) -> None:
        url, self._owners = address.without_owners(url)
        super().__init__(url, **options)

    def definitions(self) -> list[str]:
        return list(definitions(WORDS))

    def _connect(self) -> TranslatingCursor:
        own = {
            "connect_timeout": max(2, ceil(at_most(PATIENCE))),
            "application_name": "celery-exclusive",
            "keepalives_idle": int(LONGEST),
        }
        options = {**own, **self._options(), "client_encoding": "utf8"}
        try:
            connection = TimedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        except (TypeError, UnicodeError) as error:
            raise OptionError(
                f"exclusive_store: {self.url}: {error}; after '?' its URL may have the options of libpq"
            ) from None
        cursor = TranslatingCursor(connection)
        cursor.execute(statements.ABOUT)
        ((version, pid, owners),) = cursor.fetchall()
        if version < OLDEST:
            connection.close()
            server = f"PostgreSQL {version // 10000}"
            raise OptionError(hints.too_old(self.url, server, str(OLDEST // 10000)))
        self._refuse(cursor, owners)
        if pid == connection.info.backend_pid:  # a pooler tells a number of its own
            connection.prepare_threshold = 2
        return cursor

    def _is_closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def _begin(self, cursor: TranslatingCursor, *, writes: bool) -> None:
        cursor.execute(statements.BEGIN if writes else statements.BEGIN_READING)
        while cursor.nextset():
            pass

    def _make_tables(self, cursor: TranslatingCursor) -> None:
        self._begin(cursor, writes=True)
        *made, stamp = self.definitions()
        for statement in (statements.LOCK_TABLES, *made, statements.FOREIGN):
            cursor.execute(statement)
        ((owners,),) = cursor.fetchall()
        self._refuse(cursor, owners)  # another role may have made them just now
        cursor.execute(stamp)
        cursor.execute("COMMIT")

    def _refuse(self, cursor: TranslatingCursor, owners: list[str] | None) -> None:
        """Refuse tables of a role that is not known to be trusted."""
        if foreign := sorted({*(owners or ())} - {*self._owners}):
            cursor.connection.close()
            raise OptionError(hints.foreign(self.url, foreign))

    def _grant(self, cursor: TranslatingCursor, claim: dict[str, Any]) -> int | None:
        result = cursor.send(_GRANT, claim)
        return int(result.get_value(0, 0)) if result.ntuples else None

    def _release(self, cursor: TranslatingCursor, claim: dict[str, Any]) -> bool:
        return bool(cursor.send(_RELEASE, claim).command_tuples)

    def _lossy_settings(self, cursor: TranslatingCursor) -> list[tuple[str, str, str]]:
        cursor.execute(statements.DURABILITY)
        return [(name, value, "on") for name, value in cursor.fetchall() if value == "off"]

    def _explained(self, error: Exception, hint: str = "") -> Exception:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) and not self._is_replica():
            hint = hints.READ_ONLY
        return super()._explained(error, hint)

    def _is_replica(self) -> bool:
        """Ask on a connection of its own: the error came from another, and says the same of both."""
        try:
            cursor = self._connect()
            with closing(cursor.connection):
                cursor.execute(statements.IS_REPLICA)
                ((is_replica,),) = cursor.fetchall()
                return bool(is_replica)
        except (psycopg.Error, OptionError):
            return True  # it has become one, and is restarting
