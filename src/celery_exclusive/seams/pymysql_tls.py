"""The TLS context that connections of PyMySQL share."""

from __future__ import annotations

from typing import Any, ClassVar

from pymysql.connections import Connection

_OfDriver: Any = Connection  # its types lack what is overridden


class SharedTls(_OfDriver):  # type: ignore[misc]
    """A connection that shares one TLS context with all connections without options for TLS.

    The driver makes one for each, in 20 ms; a child that is forked meanwhile may hang in it.
    """

    _shared: ClassVar[Any] = None

    def _create_ssl_ctx(self, *given: Any, **named: Any) -> Any:
        if any((*given, *named.values())):  # of files, which may be others by now
            return super()._create_ssl_ctx(*given, **named)
        if SharedTls._shared is None:
            SharedTls._shared = super()._create_ssl_ctx(*given, **named)
        return SharedTls._shared
