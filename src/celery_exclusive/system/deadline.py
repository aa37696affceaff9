"""Deadlines of store calls, for callers that have less time than the timeout of the store."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_SHORTEST = 0.01
_until: ContextVar[float | None] = ContextVar("celery_exclusive_deadline", default=None)


@contextmanager
def deadline(seconds: float | None) -> Generator[None]:
    """Limit the time of all store calls within the block together; None: no limit."""
    mark = _until.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(mark)


def at_most(timeout: float) -> float:
    """Return this timeout, or the seconds until the deadline if they are fewer."""
    until = _until.get()
    return timeout if until is None else max(min(timeout, until - time.monotonic()), _SHORTEST)
