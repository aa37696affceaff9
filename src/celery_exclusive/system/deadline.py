"""Deadlines of store calls, for callers that have less time than the timeout of the store."""

from __future__ import annotations

import time
from contextvars import ContextVar

_SHORTEST = 0.01
_until: ContextVar[float | None] = ContextVar("celery_exclusive_deadline", default=None)


class deadline:  # noqa: N801 - callers read it as a function
    """Limit the time of all store calls within the block together; None: no limit.

    with deadline(0.3):
        store.apply(key, operation)
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._mark = _until.set(None if self._seconds is None else time.monotonic() + self._seconds)

    def __exit__(self, *_: object) -> None:
        _until.reset(self._mark)


def at_most(timeout: float) -> float:
    """Return this timeout, or the seconds until the deadline if they are fewer."""
    until = _until.get()
    return timeout if until is None else max(min(timeout, until - time.monotonic()), _SHORTEST)
