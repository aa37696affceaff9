"""Connections of Django, PyMySQL and redis-py. No driver is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

socket_of: Final = attrgetter("_sock")
"""Return the socket of an open connection of PyMySQL or redis-py."""


def open_blocks(connection: Any) -> Sequence[Any]:
    """Return the `atomic()` blocks in which a connection is, the outermost first."""
    return getattr(connection, "atomic_blocks", ())


def is_of_test(block: Any) -> bool:
    """Whether a `TestCase` has opened this block around each of its tests."""
    return getattr(block, "_from_testcase", False)


def has_closed_in_block(connection: Any) -> bool:
    """Whether a connection was closed in a block, which is still open."""
    return bool(connection.closed_in_transaction)


def set_timeouts(connection: Any, seconds: float) -> None:
    """Set how long each read and each write of PyMySQL may take from now on."""
    connection._read_timeout = connection._write_timeout = seconds
