"""The connections of a store that no call uses now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from celery_exclusive.system.threads import is_green, original

T = TypeVar("T")
_inherited: list[Any] = []
"""Connections of a parent process: to close them here would close them there."""


class Idle(Generic[T]):
    """Idle connections of this process: a forked child does not use its parent's.

    No lock guards them, so none can be held while a process forks.
    """

    def __init__(self) -> None:
        self._local = _new_local()
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[T]:
        return iter(self._connections)

    def pop(self) -> T | None:
        """Remove and return the connection that was used last."""
        try:
            return self._connections.pop()
        except IndexError:
            return None

    def append(self, connection: T) -> None:
        self._connections.append(connection)

    def drain(self) -> Iterator[T]:
        """Remove and yield all connections."""
        connections = self._connections
        with suppress(IndexError):  # another thread may remove some meanwhile
            while True:
                yield connections.pop()

    @property
    def _connections(self) -> list[T]:
        pid = os.getpid()
        if self._pid != pid:
            _inherited.append(self._local)
            self._local, self._pid = _new_local(), pid  # in this order: another thread may look now
        connections: list[T] = self._local.connections
        return connections


def _new_local() -> Any:
    """Return what holds idle connections: one for all threads, but with gevent one for each thread.

    A socket of gevent belongs to the loop of its thread, and the heartbeat must not use the tasks' loop.
    """
    base: type = original("_thread", "_local") if is_green() else object

    class Local(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.connections: list[Any] = []

    return Local()
