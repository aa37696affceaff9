"""How long a call of a store may take, for callers whose own time is shorter than its timeout."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_SHORTEST = 0.01
_until: ContextVar[float | None] = ContextVar("celery_exclusive_deadline", default=None)


@contextmanager
def deadline(seconds: float | None) -> Generator[None]:
    """Let all calls within the block together take no longer than this; None: as long as they take."""
    mark = _until.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(mark)


def at_most(timeout: float) -> float:
    """This timeout in seconds, or what is left until the deadline."""
    until = _until.get()
    return timeout if until is None else max(min(timeout, until - time.monotonic()), _SHORTEST)
