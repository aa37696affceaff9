"""A store in a database server: its own connections, and retries after errors that pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, TypeVar
from weakref import finalize

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Granted,
    KeyOperation,
    Release,
)
from celery_exclusive.errors import OptionError, StoreRefused, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import Reply, as_repeated
from celery_exclusive.stores.damaged import Damaged
from celery_exclusive.stores.idle import Idle
from celery_exclusive.stores.sql import rows, statements, tables
from celery_exclusive.stores.sql.database import Database, Trouble
from celery_exclusive.stores.sql.rows import Found
from celery_exclusive.stores.sql.store import SqlStore
from celery_exclusive.stores.sql.transaction import (
    RELEASED,
    Cursor,
    NamespaceGone,
    Transaction,
    new_version,
)
from celery_exclusive.stores.text import to_bytes, to_text
from celery_exclusive.system.deadline import at_most

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds for each answer, and for retries while other transactions are in the way."""
_PAUSE = (0.001, 0.02)


class ServerTransaction(Transaction):
    """A transaction beside others. It locks a row before it reads the clock and the data that decide."""

    clock: Callable[[], int] | None = None
    is_reading = False

    def _space(self) -> Any:
        self._lock(statements.LOCK_NAMESPACE, self.namespace)
        return super()._space()

    def _find(self, key: str, id: str) -> Found:
        if not self.is_reading:
            self._lock(statements.LOCK_KEY, self.namespace, to_bytes(key))
        return super()._find(key, id)

    def locked_by_others(self, keys: Sequence[str]) -> set[str]:
        statement = statements.repeated(statements.PRESENT_LOCKS, len(keys))
        return {to_text(key) for (key,) in self._all(statement, self.namespace, *map(to_bytes, keys))}

    def _lock(self, statement: str, *name: bytes) -> None:
        _, now = self._one(statement, *name)
        self.now = self.clock() if self.clock else now


class _Session:
    """An open connection, used by one call at a time."""

    __slots__ = ("connection", "cursor", "is_repeated", "transaction")

    def __init__(self, connection: Any, transaction: ServerTransaction) -> None:
        self.connection = connection
        self.transaction = transaction
        self.cursor = transaction.cursor
        self.is_repeated = False
        """Whether the call was sent before, on a connection that was lost: it may have been executed."""

    def roll_back(self) -> bool:
        """Return whether the connection can be used again."""
        try:
            self.cursor.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - it is lost, too
            self.close()
            return False
        return True

    def close(self) -> None:
        with suppress(Exception):
            self.connection.close()


class ServerStore(SqlStore):
    """Leases in a database server, by its clock.

    A server or database that cannot be used raises OptionError from `check`, and StoreUnavailable from the
    verbs. `clock`, if a test sets it, returns the time in microseconds instead.
    """

    def __init__(self, database: Database, *, prefix: str, offer: int, tombstone_ttl: int) -> None:
        super().__init__(database.url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)
        self.clock: Callable[[], int] | None = None
        self.keeps_connections = True
        """Whether a connection stays open after its call, for the next one."""
        self._database = database
        self._idle = Idle(_Session.close)
        finalize(self, self._idle.clear)

    def apply(self, key: str, operation: KeyOperation) -> Reply:
        try:
            return self._do(lambda session: self._apply(session, key, operation))
        except Damaged as error:
            raise UnreadableKey(key, str(error), self.url) from error

    def transact(self, work: Callable[[Transaction], T], *, writes: bool = True) -> T:
        return self._do(lambda session: self._within(session, work, writes=writes))

    def check(self) -> list[str]:
        self._patiently(lambda session: self._within(session, lambda transaction: transaction.reap(limit=0)))
        found = self._patiently(lambda session: self._database.lossy_settings(session.cursor))
        return [
            f"store {self.url}: its {name} is {value}, so a crash may lose locks and waiting tasks; set it "
            f"to {safe}"
            for name, value, safe in found
        ]

    def close(self) -> None:
        self._idle.clear()

    def definitions(self) -> list[str]:
        """Return the statements that make the tables, for an administrator with the right to run them."""
        return self._database.definitions()

    def create_tables(self) -> None:
        """Make the tables, unless they are there."""
        self.refuse_to_make()
        self._patiently(lambda session: self._database.create_tables(session.cursor))

    def _apply(self, session: _Session, key: str, operation: KeyOperation) -> Reply:
        if session.is_repeated and isinstance(operation, Acquire):
            operation = replace(operation, redelivered=True)
        reply = self._at_once(session, key, operation)
        if reply is None:
            reply = self._within(session, lambda transaction: transaction.apply(key, operation))
        return as_repeated(reply, operation) if session.is_repeated else reply

    def _at_once(self, session: _Session, key: str, operation: KeyOperation) -> Reply | None:
        """Grant a free key, or release its only lease, in one statement; None: it takes a transaction.

        Only for a new message: the store's data about others are read in a second statement.
        """
        claim: dict[str, Any] = {"now": self.clock() if self.clock else None, "key": to_bytes(key)}
        claim["namespace"] = session.transaction.namespace
        op = operation
        if isinstance(op, Release):
            claim["before"], claim["after"] = rows.around_lone_expiry(op.id, op.token)
            return RELEASED if self._database.release(session.cursor, claim) else None
        limit, phase = 1, "running"
        is_new = isinstance(op, Acquire) and not (op.may_be_in_line or op.takes_over or op.recovers)
        if isinstance(op, Acquire) and is_new and op.limit > 0:
            limit = op.limit
        elif isinstance(op, AcquireAlone) and not (op.inherits or op.sends):
            phase = op.phase
        else:
            return None
        before, claim["after"] = rows.around_lone_expiry(op.id, op.token, phase)
        claim["before"] = f'{{"limit": {limit}{before}'
        claim["id"], claim["ttl"], claim["version"] = to_bytes(op.id), op.ttl, new_version()
        fence = self._database.grant(session.cursor, claim)
        return None if fence is None else Reply(Granted(fence))

    def _within(self, session: _Session, work: Callable[[Transaction], T], *, writes: bool = True) -> T:
        transaction, cursor = session.transaction, session.cursor
        now = self._database.begin(cursor, writes=writes)
        transaction.now = self.clock() if self.clock else now
        transaction.clock, transaction.is_reading = self.clock, not writes
        result = work(transaction)
        cursor.execute("COMMIT")
        return result

    def _do(self, work: Callable[[_Session], T]) -> T:
        try:
            return self._patiently(work)
        except OptionError as error:  # check() says so; a task that finds it so waits until it is mended
            raise StoreUnavailable(str(error)) from error

    def _patiently(self, work: Callable[[_Session], T]) -> T:
        """Retry after a lost connection, without tables, and while other transactions are in the way."""
        until = time.monotonic() + at_most(PATIENCE)
        is_repeated = is_empty = False
        while True:
            session = None
            try:
                session = self._idle.pop() or self._open(is_empty=is_empty)
                session.is_repeated = is_repeated
                result = work(session)
                self._keep(session)
                return result
            except (self._database.error, NamespaceGone) as error:
                trouble = self._trouble(error, session)
                if trouble == "busy" and time.monotonic() < until:
                    if session and session.roll_back():
                        self._keep(session)
                elif session and trouble == "lost" and not is_repeated:
                    self._close_with(session)  # a server that dropped one has dropped all of them
                    is_repeated = True
                    continue
                elif session and trouble == "no tables" and not is_empty:
                    self._close_with(session)
                    is_empty = True
                    continue
                else:
                    if session:
                        session.close()
                    raise self._explained(error) from error
            except BaseException:
                if session:
                    session.close()
                raise
            time.sleep(random.uniform(*_PAUSE))

    def _trouble(self, error: Exception, session: _Session | None) -> Trouble:
        """Return the meaning of an error. A closed connection is lost, unless the server gave a reason."""
        if isinstance(error, NamespaceGone):
            return "no tables"
        trouble = self._database.trouble(error)
        is_closed = session is not None and self._database.is_closed(session.connection)
        return "lost" if is_closed and trouble not in ("silent", "misuse", "full") else trouble

    def _keep(self, session: _Session) -> None:
        if self.keeps_connections:
            self._idle.append(session)
        else:
            session.close()

    def _close_with(self, session: _Session) -> None:
        session.close()
        self.close()

    def _open(self, *, is_empty: bool) -> _Session:
        connection, cursor = self._database.connect()
        transaction = ServerTransaction(
            cursor, self.url, prefix=self.prefix, offer=self.offer, tombstone_ttl=self.tombstone_ttl
        )
        session = _Session(connection, transaction)
        try:
            if is_empty and not self.made_by:
                self._database.create_tables(cursor)
            self._prepare(cursor, transaction.namespace)
        except BaseException:
            session.close()
            raise
        return session

    def _prepare(self, cursor: Cursor, namespace: bytes) -> None:
        """Make what is missing of the tables, and the namespace's row."""
        try:
            cursor.execute(statements.LOOK, (namespace,))
            row = cursor.fetchone()
        except self._database.error as error:
            if self._database.trouble(error) != "no tables":
                raise
            row = None
        if row is None:
            self.refuse_to_make()
            self._database.create_tables(cursor)
            row = (tables.VERSION, None)
        version, epoch = row
        if version != tables.VERSION:
            raise OptionError(
                f"exclusive_store: {self.url} has tables of another release of celery-exclusive (version "
                f"{version}, not {tables.VERSION}): run the same release everywhere, or, when all locks are "
                "released, drop the tables exclusive2_*"
            )
        if epoch is None:
            cursor.execute(statements.ADD_NAMESPACE, (namespace, token_hex(8)))

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, StoreUnavailable):
            return error
        text = " ".join(str(error).split()).rstrip(".")
        hint = self._database.hint(error)
        if self._database.trouble(error) == "misuse":
            return OptionError(f"exclusive_store: {self.url}: {text}; {hint}")
        kind = StoreRefused if self._database.trouble(error) == "refused" else StoreUnavailable
        return kind(f"store {self.url}: {text}; {hint}")
