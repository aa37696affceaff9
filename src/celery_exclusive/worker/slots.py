"""Which request gets the next free slot of a worker."""

from __future__ import annotations

from typing import Any

from celery_exclusive.worker.handed_on import line_of

_OLDEST = 3
"""One of so many slots for what was handed on is for what waits longest, the others for the longest line."""


class Slots:
    """Gives slots in turn to what was handed on and to what a broker has delivered.

    So no key keeps another from its turn, however many tasks wait for it. The tasks of the longest line
    end last, so its next one goes first.
    """

    def __init__(self, semaphore: Any) -> None:
        self._delivered = semaphore._waiting
        self._handed_on: list[Any] = []
        self._turns = 0  # of what was handed on
        self._is_turn_of_delivered = False
        semaphore._add_waiter, semaphore._pop_waiter = self._add, self._next

    def _add(self, waiting: Any) -> None:
        (self._delivered if _line(waiting) is None else self._handed_on).append(waiting)

    def _next(self) -> Any:
        """Raises IndexError if nothing waits."""
        if not self._handed_on:
            return self._delivered.popleft()
        if self._delivered and self._is_turn_of_delivered:
            self._is_turn_of_delivered = False
            return self._delivered.popleft()
        self._is_turn_of_delivered = True
        self._turns += 1
        is_turn_of_longest = self._turns % _OLDEST
        chosen = max(self._handed_on, key=_length) if is_turn_of_longest else self._handed_on[0]
        self._handed_on.remove(chosen)
        return chosen


def _line(waiting: Any) -> int | None:
    """Return the line of a request that waits for a slot: a callback, with its arguments."""
    _, (request, *_), _ = waiting
    return line_of(request.message)


def _length(waiting: Any) -> int:
    return _line(waiting) or 0
