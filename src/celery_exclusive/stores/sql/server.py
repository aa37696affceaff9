"""A store in a database server: its own connections, and retries after errors that pass."""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, ClassVar, Literal, TypeVar
from weakref import finalize

from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive.core.operations import Acquire, AcquireAlone, Granted, Operation, Release
from celery_exclusive.errors import OptionError, StoreRefused, StoreUnavailable
from celery_exclusive.stores.base import Reply, as_repeated
from celery_exclusive.stores.document_store import CLOCK_MARGIN
from celery_exclusive.stores.idle import Idle
from celery_exclusive.stores.sql import address, rows, statements, tables
from celery_exclusive.stores.sql.rows import Found, Space
from celery_exclusive.stores.sql.store import SqlStore
from celery_exclusive.stores.sql.transaction import RELEASED, Cursor, NamespaceGone, Transaction, new_version
from celery_exclusive.stores.text import to_bytes, to_text
from celery_exclusive.stores.workers import WorkerRecord
from celery_exclusive.system.deadline import at_most

T = TypeVar("T")
ErrorKind = Literal["lost", "silent", "busy", "no tables", "misuse", "refused", "full", "other"]
"""The meaning of an error. lost: the connection is. silent: the server does not answer. busy: other
transactions are in the way. misuse: a person must change a setting. refused: a retry does not help. full: no
room, or no connection, is left.
"""
PATIENCE = 5.0
"""Seconds for each answer, and for retries while other transactions are in the way."""
_PAUSE = (0.001, 0.02)


class ServerTransaction(Transaction):
    """A transaction beside others. It locks a row before it reads the clock and the data that decide."""

    clock: Callable[[], int] | None = None
    is_reading = False
    kept_ended = CLOCK_MARGIN
    is_repeated = False
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

    def locked_by_others(self, names: Sequence[str], *, of: str = "") -> set[str]:
        if not names:
            return set()
        statement = statements.repeated(
            statements.PRESENT_HOLDERS if of else statements.PRESENT_LOCKS, len(names)
        )
        where = (self.namespace, to_bytes(of)) if of else (self.namespace,)
        return {to_text(name) for (name,) in self._all(statement, *where, *map(to_bytes, names))}

    def look(self, worker: WorkerRecord | None = None) -> Space:
        *space, now = self._one(statements.SPACE_AND_TIME, *self._name_of(worker), self.namespace)
        self.now = self.clock() if self.clock else now
        return self._sound(space)

    def _lock_namespace(self) -> None:
        self._lock(statements.LOCK_NAMESPACE, self.namespace)

    def _may_sweep(self) -> bool:
        return self._lock(statements.LOCK_NAMESPACE_IF_FREE, self.namespace)

    def _find(self, key: str, id: str) -> Found:
        while not self.is_reading and not self._lock(statements.LOCK_KEY, self.namespace, to_bytes(key)):
            found = super()._find(key, id)
            if found.version is None:  # else another transaction has made the row after the clock was read
                return found
        return super()._find(key, id)

    def _lock(self, statement: str, *name: bytes) -> bool:
        """Lock a row, and read the clock. Return whether there is such a row."""
        found, now = self._one(statement, *name)
        self.now = self.clock() if self.clock else now
        return found is not None


class ServerStore(SqlStore[ServerTransaction]):
    """Leases in a database server, by its clock. A subclass for each kind of server knows its driver.

    A server or database that cannot be used raises OptionError from `check`, and StoreUnavailable from the
    verbs. `clock`, if a test sets it, returns the time in microseconds instead.

    Parameters:
        url: as SQLAlchemy reads it. Any driver that it names is replaced by the one of the subclass.
        parameters: returns the driver's parameters of a new connection, in place of those in the URL, which
            is for messages then.

    Raises:
        OptionError: the URL is malformed.
    """

    _driver: ClassVar[str]
    """The dialect and driver of SQLAlchemy that read the URL."""
    _error: ClassVar[type[Exception]]
    """The base class of the driver's errors."""

    def __init__(
        self,
        url: str,
        *,
        parameters: Callable[[], dict[str, Any]] | None = None,
        prefix: str = "cx",
        **times: int,
    ) -> None:
        if parameters is None:
            url, parameters = address.read(url, self._driver)
        super().__init__(url, prefix=prefix, **times)
        self.clock: Callable[[], int] | None = None
        self.keeps_connections = True
        """Whether a connection stays open after its call, for the next one."""
        self._parameters = parameters
        self._idle = Idle(ServerTransaction.close)
        finalize(self, self._idle.clear)

    @abstractmethod
    def definitions(self) -> list[str]:
        """Return the statements that make the tables, for an administrator with the right to run them."""

    @abstractmethod
    def _connect(self) -> Cursor:
        """Open a connection that commits each statement, and its cursor that takes `?` for a parameter."""

    @abstractmethod
    def _is_closed(self, connection: Any) -> bool:
        """Whether the driver has found the other end closed."""

    @abstractmethod
    def _begin(self, cursor: Any, *, writes: bool) -> None:
        """Begin a transaction of limited time, since others wait for it. The answer is the server's time."""

    @abstractmethod
    def _make_tables(self, cursor: Any) -> None:
        """Make the tables, unless they are there; other processes may do the same at once."""

    @abstractmethod
    def _grant(self, cursor: Any, claim: dict[str, Any]) -> int | None:
        """Grant a free key in one statement, as `step` would; return the fence, or None if it is not free.

        Parameters:
            claim: `namespace`, `key` and `id`; `now` in a test, else None and the server's clock decides;
                `ttl`; `version` of a new row; the text of the document `before` its expiry and `after` its
                fence.
        """

    @abstractmethod
    def _release(self, cursor: Any, claim: dict[str, Any]) -> bool:
        """Release the only lease of a key without line in one statement; return whether it had that state.

        Parameters:
            claim: `namespace`, `key`, `now`; the document's text between its limit and the expiry `before`,
                and `after` the fence.
        """

    @abstractmethod
    def _lossy_settings(self, cursor: Any) -> list[tuple[str, str, str]]:
        """Return the settings with which a crash may lose what was committed: name, value and safe value."""

    @staticmethod
    @abstractmethod
    def _meaning(error: Exception) -> tuple[ErrorKind, str]:
        """Return the meaning of an error of the driver, and the next step after it."""

    def apply(self, key: str, operation: Operation) -> Reply:
        return self.transact(lambda transaction: self._apply(transaction, key, operation), writes=None)

    def check(self) -> list[str]:
        self._patiently(lambda transaction: transaction.try_out(), writes=True)
        found = self._patiently(lambda transaction: self._lossy_settings(transaction.cursor), writes=None)
        return [
            f"store {self.url}: its {name} is {value}, so a crash may lose locks and waiting tasks; set it "
            f"to {safe}"
            for name, value, safe in found
        ]

    def close(self) -> None:
        self._idle.clear()

    def create_tables(self) -> None:
        """Make the tables, unless they are there."""
        self.refuse_to_make()
        self._patiently(lambda transaction: self._make_tables(transaction.cursor), writes=None)

    def _apply(self, transaction: ServerTransaction, key: str, operation: Operation) -> Reply:
        if transaction.is_repeated and isinstance(operation, Acquire):
            operation = replace(operation, redelivered=True)
        reply = self._at_once(transaction, key, operation)
        if reply is None:
            reply = self._within(transaction, lambda transaction: transaction.apply(key, operation))
        return as_repeated(reply, operation) if transaction.is_repeated else reply

    def _at_once(self, transaction: ServerTransaction, key: str, operation: Operation) -> Reply | None:
        """Grant a free key, or release its only lease, in one statement; None: it takes a transaction.

        Only for a new message: the store's data about others are read in a second statement.
        """
        claim: dict[str, Any] = {"now": self.clock() if self.clock else None, "key": to_bytes(key)}
        claim["namespace"] = transaction.namespace
        op = operation
        if isinstance(op, Release):
            claim["before"], claim["after"] = rows.around_lone_expiry(op.id, op.token)
            return RELEASED if self._release(transaction.cursor, claim) else None
        if isinstance(op, Acquire) and not (
            op.may_be_in_line
            or op.takes_over
            or op.recovers
            or op.limit < 1
            or op.cost > 1
            or op.rates
            or op.part
        ):
            limit, phase = op.limit, "running"
        elif isinstance(op, AcquireAlone) and not (op.inherits or op.sends):
            limit, phase = 1, op.phase
        else:
            return None
        before, claim["after"] = rows.around_lone_expiry(op.id, op.token, phase)
        claim["before"] = f'{{"limit": {limit}{before}'
        claim["id"], claim["ttl"], claim["version"] = to_bytes(op.id), op.ttl, new_version()
        fence = self._grant(transaction.cursor, claim)
        return None if fence is None else Reply(Granted(fence))

    def _within(
        self, transaction: ServerTransaction, work: Callable[[ServerTransaction], T], *, writes: bool = True
    ) -> T:
        self._begin(transaction.cursor, writes=writes)
        ((now,),) = transaction.cursor.fetchall()
        transaction.now = self.clock() if self.clock else now
        transaction.is_reading = not writes
        result = work(transaction)
        transaction.cursor.execute("COMMIT")
        return result

    def _patiently(self, work: Callable[[ServerTransaction], T], *, writes: bool | None) -> T:
        """Retry after a lost connection, without tables, and while other transactions are in the way."""
        until = time.monotonic() + at_most(PATIENCE)
        met = set[ErrorKind]()
        while True:
            opened = None
            try:
                opened = self._idle.pop() or self._open(is_empty="no tables" in met)
                opened.clock, opened.is_repeated = self.clock, "lost" in met
                result = work(opened) if writes is None else self._within(opened, work, writes=writes)
                self._keep(opened)
                return result
            except (self._error, NamespaceGone) as error:
                trouble = self._trouble(error, opened)
                if trouble == "busy" and time.monotonic() < until:
                    if opened and opened.roll_back():
                        self._keep(opened)
                    time.sleep(random.uniform(*_PAUSE))
                elif opened and trouble in ("lost", "no tables") and trouble not in met:
                    met.add(trouble)
                    opened.close()
                    self.close()  # a server that dropped one has dropped all of them
                else:
                    if opened:
                        opened.close()
                    raise self._explained(error) from None
            except BaseException:
                if opened:
                    opened.close()
                raise

    def _trouble(self, error: Exception, opened: ServerTransaction | None) -> ErrorKind:
        """Return the meaning of an error. A closed connection is lost, unless the server gave a reason."""
        if isinstance(error, NamespaceGone):
            return "no tables"
        trouble, _ = self._meaning(error)
        is_closed = opened is not None and self._is_closed(opened.connection)
        return "lost" if is_closed and trouble not in ("silent", "misuse", "full") else trouble

    def _keep(self, opened: ServerTransaction) -> None:
        if self.keeps_connections:
            self._idle.append(opened)
        else:
            opened.close()

    def _options(self) -> dict[str, Any]:
        """Return the driver's parameters of a new connection.

        Raises:
            OptionError: they cannot be made now. What makes them is code of others, such as a client of a
                server of passwords, and raises what it likes.
        """
        try:
            return {**self._parameters()}
        except (OptionError, SoftTimeLimitExceeded):
            raise
        except Exception as error:
            raise OptionError(
                f"exclusive_store: {self.url}: the parameters of a connection cannot be made: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _open(self, *, is_empty: bool) -> ServerTransaction:
        cursor = self._connect()
        opened = ServerTransaction(
            cursor, self.url, prefix=self.prefix, offer=self.offer, tombstone_ttl=self.tombstone_ttl
        )
        try:
            if is_empty and not self.made_by:
                self._make_tables(cursor)
            self._prepare(cursor, opened.namespace)
        except BaseException:
            opened.close()
            raise
        return opened

    def _prepare(self, cursor: Cursor, namespace: bytes) -> None:
        """Make what is missing of the tables, and the namespace's row."""
        try:
            cursor.execute(statements.LOOK, (namespace,))
            row = cursor.fetchone()
        except self._error as error:
            if self._meaning(error)[0] != "no tables":
                raise
            row = None
        if row is None:
            self.refuse_to_make()
            self._make_tables(cursor)
            row = (tables.VERSION, None)
        version, epoch = row
        tables.refuse_other(self.url, version)
        if epoch is None:
            cursor.execute(statements.ADD_NAMESPACE, (namespace, token_hex(8)))

    def _explained(self, error: Exception, hint: str = "") -> Exception:
        if isinstance(error, StoreUnavailable):
            return error
        trouble, usual_hint = self._meaning(error)
        text = f"{self.url}: {' '.join(str(error).split()).rstrip('.')}; {hint or usual_hint}"
        if trouble == "misuse":
            return OptionError(f"exclusive_store: {text}")
        if trouble == "refused":
            return StoreRefused(f"store {text}")
        return StoreUnavailable(f"store {text}")
