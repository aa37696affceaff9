"""mysql:// and mariadb://: MariaDB and MySQL, by their URL, their words and the driver PyMySQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import hints
from celery_exclusive.stores.sql import mysql_statements as statements
from celery_exclusive.stores.sql.server import ServerStore
from celery_exclusive.stores.sql.tables import Words, stamped_definitions
from celery_exclusive.stores.sql.transaction import Cursor

try:
    import pymysql
    from pymysql.constants import ER

    from celery_exclusive.stores.sql import address, mysql_errors
    from celery_exclusive.stores.sql.mysql_connection import Request, TranslatingCursor, connect
except ImportError:
    raise OptionError(
        "exclusive_store: mysql:// and mariadb:// need PyMySQL and SQLAlchemy: "
        "pip install 'celery-exclusive[mysql]'"
    ) from None

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
"""The oldest servers that understand the statements."""
PREPARING = ("MariaDB",)
"""The servers that execute a prepared statement with values. MySQL takes only variables."""
_WORDS = Words(
    name="VARBINARY(255)",
    id="VARBINARY(2400)",  # an index holds 3072 bytes
    bytes="LONGBLOB",
    word="VARCHAR(16)",
    text="LONGTEXT",
    table=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    has_index_in_table=True,
)
_GRANT, _RELEASE = Request("grant", statements.GRANT), Request("release", statements.RELEASE)


class Mysql:
    """A server of MariaDB or MySQL."""

    error = pymysql.Error
    trouble = staticmethod(mysql_errors.trouble)
    hint = staticmethod(mysql_errors.hint)

    def __init__(self, url: str, parameters: Callable[[], dict[str, Any]]) -> None:
        self.url, self._parameters = url, parameters

    def connect(self) -> tuple[Any, Cursor]:
        try:
            connection = connect(**_with_encoded_password(self._parameters()))
        except (TypeError, AttributeError, ValueError, OSError) as error:  # of an option, such as `ssl_ca`
            raise OptionError(
                f"exclusive_store: {self.url}: {error}; after '?' its URL may have the options of PyMySQL"
            ) from None
        except RuntimeError as error:  # a package that this user needs to log in
            raise OptionError(f"exclusive_store: {self.url}: {error}") from None
        cursor = TranslatingCursor(connection)
        cursor.send(statements.SESSION)
        version, cursor.longest = cursor.fetchone()
        kind = "MariaDB" if "MariaDB" in version else "MySQL"
        self._refuse(kind, version, connection)
        cursor.prepares = kind in PREPARING
        return connection, cursor

    def is_closed(self, connection: Any) -> bool:
        return not connection.open

    def _refuse(self, kind: str, version: str, connection: Any) -> None:
        """Refuse a server that is too old."""
        oldest, numbers = OLDEST[kind], re.findall(r"\d+", version)[:2]
        if tuple(map(int, numbers)) < oldest:
            connection.close()
            server = f"{kind} {'.'.join(numbers)}"
            raise OptionError(hints.too_old(self.url, server, ".".join(map(str, oldest))))

    def begin(self, cursor: Any, *, writes: bool) -> int:
        cursor.send(statements.BEGIN if writes else statements.BEGIN_READING)
        return int(cursor.fetchone()[0])

    def definitions(self) -> list[str]:
        return [statements.translated(statement) for statement in stamped_definitions(_WORDS)]

    def create_tables(self, cursor: Any) -> None:
        """Create the missing tables. Each statement commits, and leaves an existing table alone."""
        for statement in self.definitions():
            cursor.send(statement)

    def grant(self, cursor: Any, claim: dict[str, Any]) -> int | None:
        try:
            cursor.request(_GRANT, claim)
        except pymysql.IntegrityError as error:
            if error.args[0] != ER.BAD_NULL_ERROR:
                raise
            return None  # no fence: the id has finished, or the namespace's row is gone
        return int(cursor.raw.lastrowid) if cursor.rowcount else None

    def release(self, cursor: Any, claim: dict[str, Any]) -> bool:
        cursor.request(_RELEASE, claim)
        return bool(cursor.rowcount)

    def lossy_settings(self, cursor: Any) -> list[tuple[str, str, str]]:
        cursor.send(statements.DURABILITY)
        (value,) = cursor.fetchone()
        return [] if value in (1, 3) else [("innodb_flush_log_at_trx_commit", str(value), "1")]


def _with_encoded_password(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the password in UTF-8, as other clients send it: PyMySQL sends Latin-1."""
    password = options.get("password")
    return options | {"password": password.encode()} if isinstance(password, str) else options


class MysqlStore(ServerStore):
    """Leases in a database of MariaDB or MySQL, in tables of their own.

    Parameters:
        url: as SQLAlchemy reads it: `mysql://user:password@host/database`. Any driver that it names is
            replaced by PyMySQL.

    Raises:
        OptionError: the URL is malformed.
    """

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5_000_000, tombstone_ttl: int = 600_000_000
    ) -> None:
        database = Mysql(*address.read(url, "mysql+pymysql"))
        super().__init__(database, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)
