"""A store in a database that speaks SQL: each verb is one short transaction."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from celery_exclusive.core.operations import Applied, Operation, Owner, Reap, Renew
from celery_exclusive.core.records import NEVER, SECOND, Part
from celery_exclusive.errors import OptionError, StoreError, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import (
    TASKS_PER_PAGE,
    Capabilities,
    Cursor,
    KeyInLine,
    Page,
    Reply,
    Snapshot,
    Times,
)
from celery_exclusive.stores.document_store import sweep
from celery_exclusive.stores.sql.transaction import Transaction
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord
from celery_exclusive.system.deadline import at_most, deadline

T = TypeVar("T")
K = TypeVar("K", bound=Transaction)
_PARTS_OF_SWEEP = 10
"""The most transactions in which one sweep ends leases."""
_A_MOMENT = 0.2
"""Seconds for which a step on a key keeps its row locked, at most, unless something is wrong."""


class SqlStore(ABC, Generic[K]):
    """A store in any database. A subclass for each kind of database opens connections and transactions."""

    capabilities = Capabilities()
    made_by = ""
    """The command that makes the tables, if the store may not."""
    unmade_by = ""
    """The command that forgets that they were made."""

    def __init__(
        self, url: str, *, prefix: str = "cx", offer: int = 5 * SECOND, tombstone_ttl: int = 600 * SECOND
    ) -> None:
        self.url = url
        self.prefix = prefix
        self.offer = offer
        self.tombstone_ttl = tombstone_ttl
        self._may_make = True

    def make_nothing(self) -> None:
        """Refuse to make tables, since an operator has typed the URL, and no app names it."""
        self._may_make = False

    def refuse_to_make(self) -> None:
        """Raise OptionError if the missing tables are made by a command, or by no reader."""
        if not self._may_make:
            raise OptionError(f"{self.url} has no tables for locks: is it the store of the app?")
        if self.made_by:
            raise OptionError(
                f"exclusive_store: {self.url} lacks the tables for locks: run `{self.made_by}`; if that "
                f"makes none, since they were dropped or it ran before this was the store, run "
                f"`{self.unmade_by}` before it"
            )

    def transact(self, work: Callable[[K], T], *, writes: bool | None = True) -> T:
        """Run `work` as one transaction, and repeat it if another transaction was faster.

        Parameters:
            writes: None: without a transaction, so that each statement of the work is one.

        Raises:
            StoreUnavailable: the work was not done.
        """
        try:
            return self._patiently(work, writes=writes)
        except OptionError as error:  # check() says so; a task that finds it so waits until it is mended
            raise StoreUnavailable(str(error)) from None

    @abstractmethod
    def _patiently(self, work: Callable[[K], T], *, writes: bool | None) -> T:
        """Run `work` as `transact` does. Raises OptionError if a person must change a setting."""

    def apply(self, key: str, operation: Operation) -> Reply:
        return self.transact(lambda transaction: transaction.apply(key, operation))

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool | None]:
        """Renew at once the leases that no other transaction keeps locked, and wait shortly for the rest.

        The wait is short, since a lease that is granted meanwhile waits for the next beat.
        """
        if not leases:
            return []
        answers = self.transact(lambda transaction: transaction.renew(leases))
        until = time.monotonic() + at_most(_A_MOMENT)
        for place, (key, renewal) in enumerate(leases):
            if answers[place] is None and (left := until - time.monotonic()) > 0:
                with deadline(left), suppress(StoreError):
                    answers[place] = self.apply(key, renewal).answer == Applied(True)
        return answers

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        """Sweep, in transactions that others do not wait long for. Most sweeps see that another has come."""
        space, time = self.transact(lambda transaction: (transaction.look(), transaction.now), writes=None)
        is_over = None
        if not space.is_swept(time, every):
            for _ in range(_PARTS_OF_SWEEP):
                is_over, time = self.transact(lambda it: (it.end_leases(every), it.now))
                if is_over is not False:
                    break
        keys = None
        if is_over is not None:
            keys = self.transact(lambda transaction: transaction.due_keys(limit + 1, time), writes=None)
        reap = Reap(recovers_until)

        def next_due() -> int | None:
            return self.transact(lambda transaction: transaction.soonest_due(time), writes=None)

        return sweep(keys, limit, lambda key: self._sweep_key(key, reap), space.epoch, time, next_due)

    def _sweep_key(self, key: str, reap: Reap) -> Reply:
        """Reap one key in a transaction of its own, so that others need not wait for a whole sweep."""
        try:
            return self.apply(key, reap)
        except UnreadableKey as error:
            self.transact(lambda transaction: transaction.set_aside(key))
            return Reply(Applied(True), unreadable=((key, error.problem),))

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        if self.transact(lambda transaction: transaction.has_kept(broker, life, worker), writes=None):
            return broker
        return self.transact(lambda it: it.keep_namespace(broker, life, worker, adopts=adopts))

    def forget_worker(self, worker: WorkerRecord) -> None:
        self.transact(lambda transaction: transaction.forget_worker(worker))

    def namespace_owner(self, *, adopts: bool = False) -> str:
        return self.transact(lambda transaction: transaction.namespace_owner(adopts=adopts), writes=False)

    def workers(self, within: int = FORGOTTEN_AFTER) -> dict[int, list[WorkerRecord]]:
        return self.transact(lambda transaction: transaction.workers(within), writes=False)

    def times(self) -> Times:
        return self.transact(lambda transaction: transaction.times(), writes=False)

    def inspect(self, key: str) -> Snapshot:
        return self.transact(lambda transaction: transaction.inspect(key), writes=False)

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        return self.transact(lambda transaction: transaction.inspect_all(keys), writes=False)

    def holders(self, key: str) -> list[Owner]:
        return self.transact(lambda transaction: transaction.holders(key), writes=False)

    def forget(self, key: str) -> None:
        self.transact(lambda transaction: transaction.forget(key))

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        return self.transact(lambda transaction: transaction.line(key, after, count), writes=False)

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        return self.transact(lambda transaction: transaction.parts(key, count), writes=False)

    def messages_of(self, tasks: Sequence[tuple[str, str]]) -> list[bytes]:
        return self.transact(lambda transaction: transaction.messages_of(tasks), writes=False)

    def places(self) -> Iterator[tuple[str, str]]:
        return iter(self.transact(lambda transaction: list(transaction.places()), writes=False))

    def lines(self) -> Iterator[KeyInLine]:
        return iter(self.transact(lambda transaction: list(transaction.lines()), writes=False))

    def keys_of(self, task_id: str) -> Iterator[str]:
        return iter(self.transact(lambda transaction: list(transaction.keys_of(task_id)), writes=False))

    def scan(self, prefix: str = "") -> Iterator[str]:
        return iter(self.transact(lambda transaction: list(transaction.scan(prefix)), writes=False))

    def epoch(self) -> str:
        return self.transact(lambda transaction: transaction.epoch(), writes=False)
