"""Chooses the request that gets the next free slot of a worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

_EVERY = 3
"""Each third slot for handed-on messages goes to the longest wait, the others to the longest line."""


class Slots:
    """The requests that wait for a slot: messages that were handed on, and deliveries of the broker.

    The two kinds take turns, so a key with many waiting tasks does not keep others from their turn. The
    longest line ends last, so its next task goes first. `line_of` returns its length, or None of a delivery.
    """

    def __init__(self, line_of: Callable[[Any], int | None]) -> None:
        self._line_of = line_of
        self._delivered: deque[Any] = deque()
        self._handed_on: list[tuple[int, Any]] = []
        self._turns = 0  # of what was handed on
        self._is_turn_of_delivered = False

    def append(self, waiting: Any) -> None:
        """Add a request as Celery keeps it: a callback with its arguments."""
        _, (request, *_), _ = waiting
        line = self._line_of(request.message)
        if line is None:
            self._delivered.append(waiting)
        else:
            self._handed_on.append((line, waiting))

    def popleft(self) -> Any:
        """Remove and return the request that gets the next slot; raise IndexError if there is none."""
        if not self._handed_on or (self._delivered and self._is_turn_of_delivered):
            self._is_turn_of_delivered = False
            return self._delivered.popleft()
        self._is_turn_of_delivered = True
        self._turns += 1
        is_turn_of_oldest = self._turns % _EVERY == 0
        chosen = self._handed_on[0] if is_turn_of_oldest else max(self._handed_on, key=itemgetter(0))
        self._handed_on.remove(chosen)
        return chosen[1]

    def clear(self) -> None:
        self._delivered.clear()
        self._handed_on.clear()

    def __len__(self) -> int:
        return len(self._delivered) + len(self._handed_on)
