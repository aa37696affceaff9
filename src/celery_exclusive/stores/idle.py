"""The idle connections of a store."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from celery_exclusive.seams.python import native
from celery_exclusive.system.threads import is_green

T = TypeVar("T")
LONGEST = 30.0
"""Seconds after which an idle connection is replaced.

Load balancers and NATs silently drop an idle connection after minutes: a request on it gets no answer.
"""
_OPTION = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))  # as macOS calls it
KEEP_ALIVE: Final = {_OPTION: int(LONGEST)} if _OPTION else {}
"""The options of a TCP socket after how many idle seconds the system probes it."""
_inherited: list[Any] = []
"""Connections of the parent process, kept open: closing them here would close them in the parent."""


class Idle(Generic[T]):
    """Idle connections of this process: a forked child does not use its parent's.

    No lock guards them, so none can be held while a process forks.

    Parameters:
        close: a function that closes one connection.
    """

    def __init__(self, close: Callable[[T], object]) -> None:
        self._close = close
        self._local = _new_local()
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[T]:
        return (connection for connection, _ in self._connections)

    def pop(self) -> T | None:
        """Remove and return the connection that was used last, unless it has been idle for too long."""
        try:
            connection, since = self._connections.pop()
        except IndexError:
            return None
        if time.monotonic() - since < LONGEST:
            return connection
        self._close(connection)
        self.clear()  # the others have been idle for even longer
        return None

    def append(self, connection: T) -> None:
        self._connections.append((connection, time.monotonic()))

    def clear(self) -> None:
        """Close all connections."""
        connections = self._connections
        with suppress(IndexError):  # another thread may remove some meanwhile
            while True:
                self._close(connections.pop()[0])

    @property
    def _connections(self) -> list[tuple[T, float]]:
        pid = os.getpid()
        if self._pid != pid:
            _inherited.append(self._local)
            self._local, self._pid = _new_local(), pid  # in this order: another thread may look now
        connections: list[tuple[T, float]] = self._local.connections
        return connections


def keep_alive(connected: socket.socket) -> None:
    """Let the system probe an idle connection, so that no NAT drops it, and the server notices its end."""
    if connected.family == getattr(socket, "AF_UNIX", None):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in KEEP_ALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _new_local() -> Any:
    """Return the container of idle connections: one for all threads, but with gevent one for each thread.

    A socket of gevent belongs to the loop of its thread, and the heartbeat must not use the tasks' loop.
    """
    base: type = native("local") if is_green() else object

    class Local(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.connections: list[Any] = []

    return Local()
