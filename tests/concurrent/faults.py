"""Faults that are planted in the clients of a round, to show that the search finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from celery_exclusive.core.operations import Applied
from celery_exclusive.stores.base import Reply
from celery_exclusive.stores.document_store import Change, DocumentStore
from celery_exclusive.stores.memcached.store import MemcachedStore
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.redis import store as redis_store
from celery_exclusive.stores.redis.cluster import ClusterStore
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.stores.sql import mysql_statements, statements
from celery_exclusive.stores.sql.store import SqlStore
from tests.concurrent.round import Fault


def _no_row_lock() -> list[Any]:
    """A step in a database that locks no row, and does not compare the version that it has read."""
    unlocked = statements.LOCK_KEY.replace(" FOR UPDATE", "")
    unchecked = statements.CHANGE_LOCK.replace("AND version = ?", "AND (version = ? OR version > 0)")
    return [
        mock.patch.object(statements, "LOCK_KEY", unlocked),
        mock.patch.object(statements, "CHANGE_LOCK", unchecked),
    ]


def _dirty_reads() -> list[Any]:
    """Steps that lock no row; they and looks see half of the transactions of others.

    Looks alone see it in one round of four.
    """
    session = mysql_statements.SESSION.replace("READ COMMITTED", "READ UNCOMMITTED")
    look = mysql_statements.BEGIN_READING.replace("REPEATABLE READ", "READ UNCOMMITTED")
    look = look.replace(" WITH CONSISTENT SNAPSHOT,", "")
    return [
        mock.patch.object(mysql_statements, "SESSION", session),
        mock.patch.object(mysql_statements, "BEGIN_READING", look),
        mock.patch.object(statements, "LOCK_KEY", statements.LOCK_KEY.replace(" FOR UPDATE", "")),
    ]


def _blind_write() -> list[Any]:
    """A swap that does not compare."""
    write, swap = MemcachedStore._write, MemoryStore.swap

    def overwrite(self: MemcachedStore, key: str, change: Change) -> bytes:
        return re.sub(rb" (C\d+|ME)\r\n", b" MS\r\n", write(self, key, change), count=1)

    def replace(self: MemoryStore, key: str, version: int, change: Change) -> bool:
        kept = self._memory.keys.get(key)
        return swap(self, key, kept.version if kept else version, change)

    return [
        mock.patch.object(MemcachedStore, "_write", overwrite),
        mock.patch.object(MemoryStore, "swap", replace),
    ]


def _new_token() -> list[Any]:
    """A request that is sent again as the request of another delivery."""
    again = dict.fromkeys(redis_store.AGAIN, ("token", "of another delivery"))
    return [mock.patch.object(redis_store, "AGAIN", again)]


def _pushed_twice() -> list[Any]:
    """A request that pushes its message, and does so again."""
    acquire_and_push = RedisStore.acquire_and_push

    def push_twice(self: Any, key: str, operation: Any, to: str, payload: bytes) -> Reply | None:
        reply = acquire_and_push(self, key, operation, to, payload)
        self._client.ask("LPUSH", to, payload)
        return reply

    return [mock.patch.object(RedisStore, "acquire_and_push", push_twice)]


def _idle_sweep() -> list[Any]:
    """A sweep that does nothing, and answers as if nothing was due."""

    def reap(self: Any, *_: Any, **__: Any) -> Reply:
        return Reply(Applied(True), epoch=self.epoch())

    kinds = (RedisStore, ClusterStore, SqlStore, DocumentStore)
    return [mock.patch.object(kind, "reap", reap) for kind in kinds]


_PATCHES: dict[Fault, Callable[[], list[Any]]] = {
    "no row lock": _no_row_lock,
    "no row lock, and dirty reads": _dirty_reads,
    "blind write": _blind_write,
    "a repetition with a new token": _new_token,
    "a message that is pushed twice": _pushed_twice,
    "a sweep that does nothing": _idle_sweep,
}


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    patches = _PATCHES[fault]() if fault in _PATCHES else []
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
