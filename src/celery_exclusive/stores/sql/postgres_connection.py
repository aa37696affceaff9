"""A connection of psycopg that gives up in time, and a cursor that takes the statements of all databases."""

from __future__ import annotations

from typing import Any

import psycopg

from celery_exclusive.stores.sql import postgres_statements as statements
from celery_exclusive.stores.sql.server import PATIENCE
from celery_exclusive.system.deadline import at_most


class TranslatingCursor:
    """A cursor that takes `?` for a parameter, and knows which rows a statement must lock."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.fetchone, self.fetchall = raw.fetchone, raw.fetchall

    @property
    def rowcount(self) -> int:
        return int(self.raw.rowcount)

    def execute(self, statement: str, parameters: Any = None, /) -> None:
        # What has no parameters needs no plan, and may be several statements, which cannot be prepared.
        self.raw.execute(statements.translated(statement), parameters, prepare=None if parameters else False)

    def executemany(self, statement: str, parameters: Any, /) -> None:
        self.raw.executemany(statements.translated(statement), parameters)


class TimedConnection(psycopg.Connection[Any]):
    """A connection that waits for no answer for ever: PostgreSQL's own library would."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit = at_most(PATIENCE)
        try:
            return super().wait(gen, interval, limit if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:
            raise psycopg.errors.ConnectionTimeout(f"no answer in {limit:g} s") from None
