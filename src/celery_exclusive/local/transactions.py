"""The open transactions of a Django project, and calls when they end. Django is not imported by this module.

Django calls back only after a commit, and drops the callback if a savepoint is rolled back. So a connection
that a lock waits for gets methods of its own, which call Django's. Each transaction ends with one of them,
also after an exception, or if the server has gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from inspect import currentframe
from types import FrameType
from typing import Any, Final

from celery_exclusive import notices
from celery_exclusive.seams.connections import has_closed_in_block, is_of_test, open_blocks

_ENDINGS: Final = ("commit", "rollback", "set_autocommit", "close")
_ATTRIBUTE: Final = "_celery_exclusive_endings"
_OLDEST: Final = (4, 2)
_BETWEEN: Final = ("celery_exclusive", "contextlib")
_reported: Final[set[str]] = set()
"""Places in the code that were reported: one line of the log is enough for all keys of a place."""


def connections() -> list[Any] | None:
    """Return Django's connections that this thread has used; None without Django, or a project's settings."""
    db: Any = sys.modules.get("django.db")
    conf: Any = sys.modules.get("django.conf")
    is_used = hasattr(db, "connections") and conf.settings.configured
    if not is_used or sys.modules["django"].VERSION < _OLDEST:
        return None
    from django.core.exceptions import ImproperlyConfigured

    try:
        return list(db.connections.all(initialized_only=True))
    except ImproperlyConfigured:
        return None


def open_transactions() -> list[Any]:
    """Return the connections of this thread that are in an `atomic()` block.

    A `TestCase` wraps each test in such blocks. These do not count, but blocks within them do.
    """
    return [connection for connection in connections() or () if _is_open(connection)]


def that_commit(connections: Sequence[Any]) -> list[Any]:
    """Return the connections whose transaction commits or rolls back, unlike the one of a `TestCase`."""
    return [connection for connection in connections if not any(map(is_of_test, open_blocks(connection)))]


def call_at_end(connections: Sequence[Any], function: Callable[[], object]) -> None:
    """Call a function, in this thread, as soon as the transactions of all these connections have ended."""
    pending = list(connections)

    def end(connection: Any) -> None:
        pending.remove(connection)
        if not pending:
            function()

    for connection in connections:
        endings = vars(connection).get(_ATTRIBUTE) or _Endings(connection)
        endings.callbacks.append(partial(end, connection))


def report_once(key: str, alias: str) -> None:
    """Warn of a lock that was released before the transaction around it ended, once for each place."""
    frame: FrameType | None = currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
    if place not in _reported:
        _reported.add(place)
        notices.ended_before_commit(key, alias, place)


class _Endings:
    """The methods that end the transactions of a connection. They stay on it, and cost one call each."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.callbacks: list[Callable[[], None]] = []
        for name in _ENDINGS:
            setattr(connection, name, partial(self._end, name, getattr(connection, name)))
        setattr(connection, _ATTRIBUTE, self)

    def _end(self, name: str, method: Callable[..., object], *arguments: object, **options: object) -> object:
        connection, is_over = self._connection, False
        try:
            result = method(*arguments, **options)
            is_over = name in ("commit", "rollback") or connection.autocommit
        finally:  # a commit that has failed is followed by a rollback, and a rollback by a close
            if is_over or connection.connection is None or has_closed_in_block(connection):
                while self.callbacks:
                    self.callbacks.pop()()
        return result


def _is_open(connection: Any) -> bool:
    if not connection.in_atomic_block or has_closed_in_block(connection):
        return False
    blocks = open_blocks(connection)
    return not blocks or not all(map(is_of_test, blocks))
