"""Calls that a fault meets for certain. Those of the clients meet it by chance."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from celery_exclusive.core.operations import Acquire, Enqueue
from celery_exclusive.stores.document_store import NOTHING, Reads
from celery_exclusive.stores.memcached.store import MemcachedStore
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.sql.transaction import Transaction
from tests.concurrent.calls import Asked, Look
from tests.concurrent.client import HOUR, Client
from tests.concurrent.faults import planted
from tests.concurrent.round import KEYS, Round
from tests.concurrent.stage import Stage

KEY = KEYS[0]


def provoke(plan: Round, stage: Stage) -> None:
    """Make the calls that show the fault of a round, beside those of its clients."""
    with planted(plan.fault):
        if plan.fault in ("blind write", "no row lock"):
            write_in_between(plan)
        elif plan.fault == "no row lock, and dirty reads":
            look_at_what_is_rolled_back(plan)
        elif plan.fault == "a repetition with a new token":
            ask(plan, grant("before"))  # the server keeps the script then
            stage.network.lose(b"unanswered")
            ask(plan, grant("unanswered"))
        elif plan.fault == "a message that is pushed twice":
            ask(plan, Enqueue("pushed", b"pushed"))


def grant(id: str) -> Acquire:
    """Return a call that is granted its key whatever the others do, who cannot end this lease."""
    return Acquire(id, "token", HOUR, 1_000, recovers=True, order="any")


def ask(plan: Round, operation: Asked, number: int = 1) -> None:
    """Make a call as a client beside those of the round, and have its answer."""
    (call,) = Client(plan.patient, plan.clients + number).make((KEY, operation))
    assert call.is_answered, call


def write_in_between(plan: Round) -> None:
    """Let two deliveries of a message read the key before either of them writes: both are granted it."""
    ask(plan, grant("before"))  # from now on there is something to overwrite
    between = iter([lambda: ask(plan, replace(grant("delivered"), token="between"), 3)])

    def interrupted(kind: Any) -> Any:
        load = kind.load

        def load_and_wait(self: Any, key: str, reads: Reads = NOTHING) -> Any:
            loaded = load(self, key, reads)
            if reads.id == "delivered":
                next(between, lambda: None)()
            return loaded

        return mock.patch.object(kind, "load", load_and_wait)

    with ExitStack() as stack:
        for kind in (MemoryStore, MemcachedStore, Transaction):
            stack.enter_context(interrupted(kind))
        ask(plan, grant("delivered"), 2)


def look_at_what_is_rolled_back(plan: Round) -> None:
    """Look at a key while a transaction has granted it, which then ends without a commit."""

    class Undone(Exception):
        pass

    def grant_and_undo(transaction: Any) -> None:
        transaction.apply(KEY, grant("undone"))
        ask(plan, Look())
        raise Undone

    store: Any = plan.open_stores()[KEY]
    with suppress(Undone):
        store.transact(grant_and_undo)
    store.close()
