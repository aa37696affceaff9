"""mysql:// and mariadb://: MariaDB and MySQL, by their words and the driver PyMySQL."""

from __future__ import annotations

import re
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import hints
from celery_exclusive.stores.sql import mysql_statements as statements
from celery_exclusive.stores.sql.tables import Words, definitions

try:
    import pymysql
    from pymysql.constants import ER

    from celery_exclusive.stores.sql import mysql_errors
    from celery_exclusive.stores.sql.mysql_connection import Request, TranslatingCursor, connect
    from celery_exclusive.stores.sql.server import ServerStore
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
_GRANT, _RELEASE = (
    Request("grant", statements.GRANT, f"{statements.FLOOR}; "),
    Request("release", statements.RELEASE),
)


class MysqlStore(ServerStore):
    """Leases in a database of MariaDB or MySQL, in tables of their own.

    Example:
        MysqlStore("mysql://user:password@host/database")
    """

    _driver = "mysql+pymysql"
    _error = pymysql.Error
    _meaning = staticmethod(mysql_errors.meaning)

    def definitions(self) -> list[str]:
        return [statements.translated(statement) for statement in definitions(_WORDS)]

    def _connect(self) -> TranslatingCursor:
        options = self._options()
        if isinstance(password := options.get("password"), str):
            options["password"] = password.encode()  # as other clients send it: PyMySQL sends Latin-1
        try:
            cursor = TranslatingCursor(connect(**options))
        except (TypeError, AttributeError, ValueError, OSError) as error:  # of an option, such as `ssl_ca`
            raise OptionError(
                f"exclusive_store: {self.url}: {error}; after '?' its URL may have the options of PyMySQL"
            ) from None
        except RuntimeError as error:  # a package that this user needs to log in
            raise OptionError(f"exclusive_store: {self.url}: {error}") from None
        cursor.send(statements.SESSION)
        ((version, longest),) = cursor.fetchall()
        cursor.longest = longest
        kind = "MariaDB" if "MariaDB" in version else "MySQL"
        numbers = re.findall(r"\d+", version)[:2]
        if tuple(map(int, numbers)) < OLDEST[kind]:
            cursor.connection.close()
            server, oldest = f"{kind} {'.'.join(numbers)}", ".".join(map(str, OLDEST[kind]))
            raise OptionError(hints.too_old(self.url, server, oldest))
        cursor.prepares = kind in PREPARING
        return cursor

    def _is_closed(self, connection: Any) -> bool:
        return not connection.open

    def _begin(self, cursor: TranslatingCursor, *, writes: bool) -> None:
        cursor.send(statements.BEGIN if writes else statements.BEGIN_READING)

    def _make_tables(self, cursor: TranslatingCursor) -> None:
        """Create the missing tables. Each statement commits, and leaves an existing table alone."""
        for statement in self.definitions():
            cursor.send(statement)

    def _grant(self, cursor: TranslatingCursor, claim: dict[str, Any]) -> int | None:
        try:
            cursor.request(_GRANT, claim)
        except pymysql.IntegrityError as error:
            if error.args[0] != ER.BAD_NULL_ERROR:
                raise
            return None  # no fence: the id has finished, or the namespace's row is gone
        return int(cursor.lastrowid) if cursor.rowcount else None

    def _release(self, cursor: TranslatingCursor, claim: dict[str, Any]) -> bool:
        cursor.request(_RELEASE, claim)
        return bool(cursor.rowcount)

    def _lossy_settings(self, cursor: TranslatingCursor) -> list[tuple[str, str, str]]:
        cursor.send(statements.DURABILITY)
        ((value,),) = cursor.fetchall()
        return [] if value in (1, 3) else [("innodb_flush_log_at_trx_commit", str(value), "1")]
