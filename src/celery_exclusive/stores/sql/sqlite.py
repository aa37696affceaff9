"""sqlite://: leases in a file, shared by all processes of one host."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import WeakSet, finalize

from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.seams.python import native
from celery_exclusive.stores.base import Capabilities
from celery_exclusive.stores.sql import sqlite_file, sqlite_tables, tables
from celery_exclusive.stores.sql.statements import NAMESPACE
from celery_exclusive.stores.sql.store import SqlStore
from celery_exclusive.system.deadline import at_most

try:
    import sqlite3

    from celery_exclusive.stores.sql.sqlite_transaction import SqliteTransaction
except ImportError:
    raise OptionError(
        "exclusive_store: sqlite:// needs Python's own module sqlite3, and this Python was built without it: "
        "install SQLite's headers (libsqlite3-dev or sqlite-devel) and build Python again"
    ) from None

T = TypeVar("T")

_PAUSE = (0.0003, 0.002)
"""Seconds until the next try while others write: SQLite's own waiting lets the unlucky starve."""
_LARGEST_JOURNAL = 16 * 2**20
"""Bytes of the file `-wal` that are kept on the disk after a reader that let it grow has gone."""
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

_guard = native("RLock")()
"""A thread holds this lock while it uses a connection, and while it forks. SQLite notes per process which
locks of a file the process holds, and a child that inherited the notes would rely on locks that it does not
hold: so no connection is open during a fork. The lock is a native one. No thread waits while it holds it, so
greenlets pass it one by one."""
_stores: WeakSet[SqliteStore] = WeakSet()


class SqliteStore(SqlStore[SqliteTransaction]):
    """Leases in a SQLite file on a local disk, for all processes of one host, by its clock.

    What was committed last may be lost when the power fails, not when a process dies. A file that cannot
    be used raises OptionError from `check`, and StoreUnavailable from the verbs.

    Parameters:
        url: `sqlite:////absolute/path.db`; with `?timeout=10` a call waits for others up to 10 seconds
            instead of 5.

    Raises:
        OptionError: the URL names no file.
    """

    capabilities = Capabilities(one_host=True)
    in_the_way = "look for a process that is stopped, or another program's long transaction in this file"

    def __init__(self, url: str, *, prefix: str = "cx", **times: int) -> None:
        self._file = sqlite_file.parse(url)
        super().__init__(f"sqlite:///{self._file.path}", prefix=prefix, **times)
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1000
        self._idle: list[SqliteTransaction] = []
        finalize(self, _close_all, self._idle)
        with _guard:
            _stores.add(self)

    def check(self) -> list[str]:
        self._patiently(lambda transaction: transaction.try_out(), writes=True)
        found = self._patiently(lambda it: [*sqlite_tables.warnings(it, self._file.path)], writes=False)
        return [*self._file.warnings(), *found]

    def close(self) -> None:
        _close_all(self._idle)

    def _patiently(self, work: Callable[[SqliteTransaction], T], *, writes: bool | None) -> T:
        """Repeat the work while another process writes, for as long as the URL allows."""
        until = time.monotonic() + at_most(self._file.patience)
        while True:
            try:
                return self._attempt(work, "BEGIN IMMEDIATE" if writes else "BEGIN")
            except (sqlite3.Error, OSError) as error:
                if not _is_locked(error) or time.monotonic() > until:
                    raise self._explained(error) from None
            time.sleep(random.uniform(*_PAUSE))

    def _attempt(self, work: Callable[[SqliteTransaction], T], begin: str) -> T:
        with _guard:
            opened = None
            try:
                opened = self._idle.pop() if self._has_idle() else self._open()
                opened.cursor.execute(begin)
                opened.now = self.clock()
                result = work(opened)
                opened.cursor.execute("COMMIT")
            except BaseException as error:
                if opened and _is_locked(error):
                    opened.connection.rollback()
                    self._idle.append(opened)
                elif opened:
                    opened.close()
                raise
            self._idle.append(opened)
            return result

    def _has_idle(self) -> bool:
        """Whether the newest connection in the list can be used. Those that cannot are closed."""
        while self._idle and not self._idle[-1].is_current():
            self._idle[-1].close()
            self._idle.pop()
        return bool(self._idle)

    def _open(self) -> SqliteTransaction:
        self._file.refuse()
        self._file.create()
        path = self._file.path
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        # Bytes that are no UTF-8 damage their own row alone, as no JSON: SQLite would refuse to read all
        # rows.
        connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        cursor = connection.cursor()
        opened = SqliteTransaction(
            cursor, path, self.url, prefix=self.prefix, offer=self.offer, tombstone_ttl=self.tombstone_ttl
        )
        try:
            ((mode,),) = cursor.execute("PRAGMA journal_mode=WAL").fetchall()
            if mode != "wal":
                raise OptionError(
                    f"exclusive_store: SQLite cannot write ahead in {path} (it has journal mode {mode}): "
                    "put the file on a local disk"
                )
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute(f"PRAGMA journal_size_limit={_LARGEST_JOURNAL}")
            are_made = sqlite_tables.are_made(cursor)
            if are_made:
                tables.refuse_other(self.url, sqlite_tables.version(cursor))
            else:
                self.refuse_to_make()
            if not (are_made and cursor.execute(NAMESPACE, (opened.namespace,)).fetchall()):
                sqlite_tables.create(cursor, opened.namespace)
        except BaseException:
            opened.close()
            raise
        return opened

    def _explained(self, error: Exception) -> Exception:
        if _is_locked(error):
            return StoreUnavailable(
                f"store {self.url}: others kept it locked for {self._file.patience:g} s: {self.in_the_way}"
            )
        for word, hint in _MISUSE.items():
            if word in str(error):
                return OptionError(f"exclusive_store: {self._file.path}: {error}; {hint}")
        hint = next((hint for word, hint in _TROUBLE.items() if word in str(error)), "trying again is safe")
        return StoreUnavailable(f"store {self.url}: {error}; {hint}")


def _close_all(idle: list[SqliteTransaction]) -> None:
    with _guard:
        while idle:
            idle.pop().close()


def _is_locked(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, sqlite3.Error) and ("locked" in text or "locking protocol" in text)


def _before_fork() -> None:
    _guard.acquire()
    for store in list(_stores):
        with suppress(Exception):
            store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_guard.release, after_in_child=_guard.release)
