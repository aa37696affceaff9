"""Deadlines of store calls, for callers that have less time than the store's timeout."""

from __future__ import annotations

import time
from contextvars import ContextVar

REPORT = 0.8
"""The seconds for which a store in trouble may delay the report of a body that has ended, all in all."""
_SHORTEST = 0.01
_QUICK = 0.1
"""The seconds within which a store answers that is not in trouble."""
_until: ContextVar[float | None] = ContextVar("celery_exclusive_deadline", default=None)


class deadline:  # noqa: N801 - callers read it as a function
    """Limit the seconds of all store calls within the block together; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._mark = _until.set(None if self._seconds is None else time.monotonic() + self._seconds)

    def __exit__(self, *_: object) -> None:
        _until.reset(self._mark)


class Budget:
    """The seconds that store calls within all its blocks may take together.

    `limit_at`: the moment of a hard time limit, by the monotonic clock: half of the time from the first block
    until then is kept for other work. Only blocks that fail, or take longer than `_QUICK`, spend them:
    neither a slow broker does, nor a group of thousands whose members the store answers.
    """

    def __init__(self, seconds: float = REPORT, limit_at: float | None = None) -> None:
        self._seconds, self._limit_at = seconds, limit_at
        self._half_at: float | None = None

    @property
    def left(self) -> float:
        left, now = self._seconds, time.monotonic()
        if self._limit_at and now < self._limit_at:  # else nothing enforces it
            left = min(left, (self._half_at or (now + self._limit_at) / 2) - now)
        return max(left, 0)

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if self._limit_at and not self._half_at:
            self._half_at = (self._began + self._limit_at) / 2
        self._mark = _until.set(self._began + self.left)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _until.reset(self._mark)
        took = time.monotonic() - self._began
        if kind or took > _QUICK:
            self._seconds -= took


def at_most(timeout: float) -> float:
    until = _until.get()
    return timeout if until is None else max(min(timeout, until - time.monotonic()), _SHORTEST)
