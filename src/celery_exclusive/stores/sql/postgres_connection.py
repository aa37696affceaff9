"""A connection of psycopg that gives up in time, and a cursor that takes the statements of all databases."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, Format

from celery_exclusive.seams.psycopg_connection import WaitTimeout, execute
from celery_exclusive.stores.sql import postgres_statements as statements
from celery_exclusive.stores.sql.server import PATIENCE
from celery_exclusive.system.deadline import at_most


class Request:
    """A statement with parameters by name, as libpq takes it.

    Parameters:
        name: the name of the statement that the server prepares.
        statement: with `%(key)s` for the parameter `key`.
    """

    def __init__(self, name: str, statement: str) -> None:
        self.parameters = tuple(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        numbers = {parameter: f"${number}" for number, parameter in enumerate(self.parameters, 1)}
        self.name, self.text = name.encode(), (statement % numbers).encode()


class TranslatingCursor(psycopg.Cursor[Any]):
    """A cursor that takes `?` for a parameter, and knows which rows a statement must lock."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._prepared = set[bytes]()

    def execute(self, query: Any, params: Any = None, **_: Any) -> Any:
        text: Any = statements.translated(query)
        # A text without parameters needs no plan, and may have several statements, which cannot be prepared.
        super().execute(text, params, prepare=None if params else False)

    def executemany(self, query: Any, params_seq: Any, **_: Any) -> None:
        if len(params_seq) == 1:  # a pipeline of psycopg takes longer
            self.execute(query, *params_seq)
        else:
            text: Any = statements.translated(query)
            super().executemany(text, params_seq)

    def send(self, request: Request, values: dict[str, Any]) -> Any:
        """Return libpq's result of a request. A cursor of psycopg would take twice the time of the server."""
        server, given = self.connection.pgconn, [values[name] for name in request.parameters]
        words = [word if isinstance(word, bytes | None) else str(word).encode() for word in given]
        formats = [Format.BINARY if isinstance(word, bytes) else Format.TEXT for word in given]
        if self.connection.prepare_threshold is None:
            server.send_query_params(request.text, words, param_formats=formats)
            return self._result()
        if request.name in self._prepared:
            server.send_query_prepared(request.name, words, param_formats=formats)
            with suppress(
                psycopg.errors.InvalidSqlStatementName
            ):  # psycopg drops all of them after a ROLLBACK
                return self._result()
        server.send_prepare(request.name, request.text)
        self._result()
        self._prepared.add(request.name)
        server.send_query_prepared(request.name, words, param_formats=formats)
        return self._result()

    def _result(self) -> Any:
        """Return the rows. The server sends them before it commits: an error after them makes them void."""
        connection = self.connection
        results = connection.wait(execute(connection.pgconn))
        for result in results:
            if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
                raise psycopg.errors.error_from_result(result)
        return results[0]


class TimedConnection(psycopg.Connection[Any]):
    """A connection that waits for each answer for a limited time. PostgreSQL's own library has no limit."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit = at_most(PATIENCE)
        try:
            return super().wait(gen, interval, limit if timeout is None else timeout)
        except WaitTimeout:
            raise psycopg.errors.ConnectionTimeout(f"no answer in {limit:g} s") from None
