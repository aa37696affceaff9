"""A connection by PyMySQL that gives up in time, and a cursor that takes the statements of all databases."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import CLIENT, ER

from celery_exclusive.stores.sql import mysql_statements as statements
from celery_exclusive.stores.sql.server import PATIENCE
from celery_exclusive.system.deadline import at_most

_LONG = 200_000
"""Characters of many statements that are sent at once."""


def connect(**options: Any) -> Any:
    """Open a connection that commits each statement, and waits for no answer for ever."""
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
    with _telling_of_silence(limit):
        return pymysql.connect(**{"connect_timeout": limit, **options, **own})


class TranslatingCursor:
    """A cursor that takes `?` for a parameter, and knows which rows a statement must lock.

    A text may be several statements: the answer to the last of them is fetched.
    """

    longest = 1 << 20
    """Bytes that the server takes at once, its max_allowed_packet."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.raw = raw = connection.cursor()
        self.fetchone, self.fetchall = raw.fetchone, raw.fetchall

    @property
    def rowcount(self) -> int:
        return int(self.raw.rowcount)

    def execute(self, statement: str, parameters: Any = None, /) -> None:
        self.send(statements.translated(statement), parameters)

    def executemany(self, statement: str, parameters: Iterable[Any], /) -> None:
        text = statements.translated(statement)
        for request in _joined(self.raw.mogrify(text, row) for row in parameters):
            self.send(request)

    def send(self, text: str, parameters: Any = None) -> None:
        """Send a text of these servers as it is."""
        request = self.raw.mogrify(text, parameters)
        if len(request) > self.longest - 100:  # else it would close the connection, often without a word
            raise pymysql.DataError(ER.NET_PACKET_TOO_LARGE, f"the request has {len(request)} bytes")
        self._connection._read_timeout = self._connection._write_timeout = at_most(PATIENCE)
        with _telling_of_silence(self._connection._read_timeout):
            self.raw.execute(request)
            while self.raw.nextset():
                pass


class NoAnswer(pymysql.OperationalError):
    """The server is silent. The request may still arrive."""


@contextmanager
def _telling_of_silence(limit: float) -> Generator[None]:
    try:
        yield
    except pymysql.OperationalError as error:
        if isinstance(error.__context__, TimeoutError):
            raise NoAnswer(f"no answer in {limit:g} s") from error
        raise


def _joined(statements: Iterable[str]) -> Iterator[str]:
    """Join statements to requests that are not too long."""
    waiting, length = list[str](), 0
    for statement in statements:
        if length + len(statement) > _LONG and waiting:
            yield ";".join(waiting)
            waiting, length = [], 0
        waiting.append(statement)
        length += len(statement)
    if waiting:
        yield ";".join(waiting)
