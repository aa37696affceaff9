"""sqlite://: leases in a file, shared by all processes of one host."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.pool import NullPool

from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.stores.base import Capabilities, older_version
from celery_exclusive.stores.sql import place, schema
from celery_exclusive.stores.sql.store import SqlStore
from celery_exclusive.stores.sql.transaction import Transaction
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.threads import original

T = TypeVar("T")

_LOCAL = Capabilities(durable="lagging", one_host=True)
_PAUSE = (0.0003, 0.002)
"""Seconds until the next try while others write: SQLite's own waiting lets the unlucky starve."""
_MISUSE = {
    "unable to open": "give this process' user the right to read and write the file and its folder",
    "readonly database": "give this process' user the right to write the file and its folder",
    "not a database": "it is another kind of file: name a new one",
}
_TROUBLE = {
    "disk is full": "make room on its disk",
    "malformed": "the file is damaged: stop all processes that use it, and move it away",
    "disk I/O error": "look into the system's log",
}

_guard = original("_thread", "RLock")()
"""Who uses a connection has it, and who forks: SQLite's notes on who holds which lock of a file belong to
the process, and a child that inherited them would believe in locks that it has not. So nothing is open
during a fork. It is a lock of the system's, never kept while one waits: greenlets pass it one by one."""
_stores: WeakSet[SqliteStore] = WeakSet()
_inherited: list[_Opened] = []
"""Connections of a parent that forked without telling Python; closing them would do harm, too."""


class _Opened:
    """A connection, with the process and the file that it belongs to."""

    def __init__(self, connection: Connection, file: os.stat_result) -> None:
        self.connection = connection
        self._driver: Any = connection.connection.dbapi_connection
        self.pid = os.getpid()
        self._file = file

    def is_of(self, path: Path) -> bool:
        """Whether the file at the path is still the one that it opened, not a new one."""
        try:
            return os.path.samestat(self._file, path.stat())
        except OSError:
            return False

    def run(self, statement: str) -> None:
        """Begin or end a transaction: past SQLAlchemy, which would only add to the time."""
        self._driver.execute(statement)

    def roll_back(self) -> None:
        self._driver.rollback()


class SqliteStore(SqlStore):
    """Leases in a SQLite file on a local disk, for all processes of one host, by its clock.

    What was committed last may be lost when the power fails, not when a process dies. A file that cannot
    be used raises OptionError from `check`, and StoreUnavailable from the verbs.

    Parameters:
        url: `sqlite:////absolute/path.db`; with `?timeout=10` a call waits for others up to 10 seconds
            instead of 5.

    Raises:
        OptionError: the URL names no file.
    """

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5_000_000, tombstone_ttl: int = 600_000_000
    ) -> None:
        self._place = place.parse(url)
        super().__init__(
            f"sqlite:///{self._place.path}", prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl
        )
        self.capabilities = _LOCAL
        self.clock = lambda: time.time_ns() // 1000
        self._engine = create_engine(
            URL.create("sqlite", database=str(self._place.path)),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"timeout": 0, "check_same_thread": False},
        )
        self._idle: list[_Opened] = []
        with _guard:
            _stores.add(self)

    def transact(self, work: Callable[[Transaction], T], *, writes: bool = True) -> T:
        try:
            return self._patiently(work, "BEGIN IMMEDIATE" if writes else "BEGIN")
        except OptionError as error:  # check() says so; a task that finds it so waits until it is mended
            raise StoreUnavailable(str(error)) from error

    def check(self) -> list[str]:
        self._patiently(lambda transaction: transaction.reap(limit=0), "BEGIN IMMEDIATE")  # it writes
        strangers = self._patiently(lambda transaction: schema.strangers(transaction.connection), "BEGIN")
        has_older_locks = self._patiently(lambda transaction: transaction.has_older_locks(), "BEGIN")
        self.capabilities = replace(_LOCAL, durable="none") if self._place.is_in_memory else _LOCAL
        warnings = self._place.warnings()
        if has_older_locks:
            warnings.append(older_version(self.url, "tables exclusive1_*"))
        if strangers:
            warnings.append(
                f"exclusive_store: {self._place.path} has tables of others too ({strangers[0]}): who writes "
                "them makes locks wait, and locks make them wait; give locks a file of their own"
            )
        return warnings

    def close(self) -> None:
        with _guard:
            while self._idle:
                opened = self._idle.pop()
                if opened.pid == os.getpid():
                    opened.connection.close()
                else:
                    _inherited.append(opened)

    def _patiently(self, work: Callable[[Transaction], T], begin: str) -> T:
        """Try until nobody else is in the way."""
        until = time.monotonic() + at_most(self._place.patience)
        while True:
            try:
                return self._attempt(work, begin)
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                if not _is_locked(error) or time.monotonic() > until:
                    raise self._explained(error) from error
            time.sleep(random.uniform(*_PAUSE))

    def _attempt(self, work: Callable[[Transaction], T], begin: str) -> T:
        with _guard:
            opened = self._take()
            try:
                opened.run(begin)
                result = work(
                    Transaction(
                        opened.connection,
                        self.clock,
                        url=self.url,
                        prefix=self.prefix,
                        offer=self.offer,
                        tombstone_ttl=self.tombstone_ttl,
                    )
                )
                opened.run("COMMIT")
            except BaseException as error:
                if _is_locked(error):
                    opened.roll_back()
                    self._idle.append(opened)
                else:
                    opened.connection.close()
                raise
            self._idle.append(opened)
            return result

    def _take(self) -> _Opened:
        path = self._place.path
        while self._idle:
            opened = self._idle.pop()
            if opened.pid != os.getpid():
                _inherited.append(opened)
            elif opened.is_of(path):
                return opened
            else:
                opened.connection.close()
        return self._open()

    def _open(self) -> _Opened:
        self._place.refuse()
        self._place.create()
        connection = self._engine.connect()
        try:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar()
            if mode != "wal":
                raise OptionError(
                    f"exclusive_store: SQLite cannot write ahead in {self._place.path} (it has journal mode "
                    f"{mode}): put the file on a local disk"
                )
            connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
            opened = _Opened(connection, self._place.path.stat())
            if not schema.has(connection, self.prefix):
                opened.run("BEGIN IMMEDIATE")
                schema.create(connection, self.prefix)
                opened.run("COMMIT")
        except BaseException:
            connection.close()
            raise
        return opened

    def _explained(self, error: Exception) -> BaseException:
        if isinstance(error, StatementError) and not isinstance(error, DBAPIError) and error.orig:
            return error.orig  # what a signal handler raised, and SQLAlchemy has wrapped
        text = _text(error)
        if _is_locked(error):
            return StoreUnavailable(
                f"store {self.url}: others kept it locked for {self._place.patience:g} s: look for a process "
                "that is stopped, or another program's long transaction in this file"
            )
        for word, hint in _MISUSE.items():
            if word in text:
                return OptionError(f"exclusive_store: {self._place.path}: {text}; {hint}")
        hint = next((hint for word, hint in _TROUBLE.items() if word in text), "trying again is safe")
        return StoreUnavailable(f"store {self.url}: {text}; {hint}")


def _text(error: BaseException) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error)


def _is_locked(error: BaseException) -> bool:
    is_ours = isinstance(error, (DBAPIError, sqlite3.Error))
    return is_ours and ("locked" in _text(error) or "locking protocol" in _text(error))


def _before_fork() -> None:
    _guard.acquire()
    for store in list(_stores):
        with suppress(Exception):
            store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_guard.release, after_in_child=_guard.release)
