"""Faults that are planted in the clients of a round, to show that the search finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from celery_exclusive.stores.document_store import Change
from celery_exclusive.stores.memcached.store import MemcachedStore
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.redis import store as redis_store
from celery_exclusive.stores.sql import mysql_statements, statements
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
    """Steps and looks that see half of the transactions of others."""
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


_PATCHES: dict[Fault, Callable[[], list[Any]]] = {
    "no row lock": _no_row_lock,
    "dirty reads": _dirty_reads,
    "blind write": _blind_write,
    "a repetition with a new token": _new_token,
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
