"""Connections of psycopg."""

from __future__ import annotations

from typing import Any, Final

from psycopg import errors, generators

WaitTimeout: Final[Any] = getattr(errors, "_WaitTimeout", ())
"""The error of a `Connection.wait` whose time is over."""
execute: Final[Any] = getattr(generators, "execute", None)
"""Make what `Connection.wait` waits for: the results of what was sent on a connection of libpq."""
