"""Connections of PyMySQL."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Final

from pymysql.connections import Connection

socket_of: Final = attrgetter("_sock")
"""Return the socket of an open connection."""


def set_timeouts(connection: Any, seconds: float) -> None:
    """Set how long each read and each write may take from now on."""
    connection._read_timeout = connection._write_timeout = seconds


_OfDriver: Any = Connection  # its types lack what is overridden


class SharedTls(_OfDriver):  # type: ignore[misc]
    """A connection that shares one TLS context with all connections without options for TLS.

    The driver makes a context for each. That takes 20 ms, since it reads the certificates of the machine, and
    a child that is forked meanwhile may hang in it.
    """

    _shared: ClassVar[Any] = None

    def _create_ssl_ctx(self, *given: Any, **named: Any) -> Any:
        if any((*given, *named.values())):  # of files, which may be others by now
            return super()._create_ssl_ctx(*given, **named)
        if SharedTls._shared is None:
            SharedTls._shared = super()._create_ssl_ctx(*given, **named)
        return SharedTls._shared
