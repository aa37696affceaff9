"""A connection by PyMySQL that gives up in time, and a cursor that takes the statements of all databases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pymysql
from pymysql.constants import CLIENT, ER
from pymysql.converters import escape_string
from pymysql.cursors import Cursor

from celery_exclusive.seams.connections import set_timeouts, socket_of
from celery_exclusive.seams.pymysql_tls import SharedTls
from celery_exclusive.stores.idle import keep_alive
from celery_exclusive.stores.sql import mysql_statements as statements
from celery_exclusive.stores.sql.server import PATIENCE
from celery_exclusive.system.deadline import at_most

_LONG = 200_000
"""The most characters of statements that are sent at once."""


def connect(**options: Any) -> Any:
    """Open a connection that commits each statement, and waits for each answer for a limited time."""
    limit = at_most(PATIENCE)
    own = {
        "read_timeout": limit,
        "write_timeout": limit,
        "autocommit": True,
        "use_unicode": True,
        "charset": "utf8mb4",
        "binary_prefix": True,
        "client_flag": CLIENT.MULTI_STATEMENTS,  # not FOUND_ROWS: a row that stays as it was must not count
    }
    try:
        connection = SharedTls(**{"connect_timeout": limit, **options, **own})
    except pymysql.OperationalError as error:
        _tell_of_silence(error, limit)
        raise
    keep_alive(socket_of(connection))
    return connection


class Request:
    """A statement with parameters by name, which is prepared, since to parse it takes as long as to run it.

    Parameters:
        name: the name of the statement that MariaDB prepares.
        text: with `%(key)s` for the parameter `key`, but no other `%`, and no backslash.
        first: a statement before it, which is not prepared.
    """

    def __init__(self, name: str, text: str, first: str = "") -> None:
        parameters: list[str] = re.findall(r"%\(\w+\)s", text)
        quoted = re.sub(r"%\(\w+\)s", "?", text).replace("'", "''")
        self.text = first + text
        self.preparation = f"PREPARE exclusive_{name} FROM '{quoted}'; "
        self.execution = f"{first}EXECUTE exclusive_{name} USING {', '.join(parameters)}"


class TranslatingCursor(Cursor):
    """A cursor that takes `?` for a parameter, and knows which rows a statement must lock.

    A text may be several statements: the answer to the last of them is fetched.
    """

    longest = 1 << 20
    """The server's max_allowed_packet: the most bytes of one request."""
    prepares = False
    """Whether requests are prepared."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._prepared = set[Request]()

    def execute(self, query: str, args: Any = None) -> Any:
        self.send(statements.translated(query), args)

    def executemany(self, query: str, args: Iterable[Any]) -> Any:
        text = statements.translated(query)
        for request in _joined(self.mogrify(text, row) for row in args):
            self.send(request)

    def request(self, request: Request, values: dict[str, Any]) -> None:
        words = {name: _literal(value) for name, value in values.items()}
        if not self.prepares:
            self.send(request.text % words)
        elif request in self._prepared:
            self.send(request.execution % words)
        else:
            self.send(request.preparation + request.execution % words)
            self._prepared.add(request)

    def send(self, text: str, parameters: Any = None) -> None:
        """Send a text of these servers as it is."""
        request = self.mogrify(text, parameters)
        if len(request) > self.longest - 100:  # else it would close the connection, often without a word
            raise pymysql.DataError(ER.NET_PACKET_TOO_LARGE, f"the request has {len(request)} bytes")
        limit = at_most(PATIENCE)
        set_timeouts(self.connection, limit)
        try:
            super().execute(request)
            while self.nextset():
                pass
        except pymysql.OperationalError as error:
            _tell_of_silence(error, limit)
            raise


def _literal(value: bytes | str | int | None) -> str:
    """Return a value as SQL, as the driver would, but without its checks that the server does not need."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"'{escape_string(value)}'"
    return "NULL" if value is None else str(value)


def _tell_of_silence(error: pymysql.OperationalError, limit: float) -> None:
    if isinstance(error.__context__, TimeoutError):  # the request may still arrive
        raise pymysql.OperationalError(f"no answer in {limit:g} s") from error


def _joined(statements: Iterable[str]) -> Iterator[str]:
    """Join statements to requests that are not too long."""
    joined = ""
    for statement in statements:
        if joined and len(joined) + len(statement) > _LONG:
            yield joined
            joined = ""
        joined += f";{statement}" if joined else statement
    if joined:
        yield joined
