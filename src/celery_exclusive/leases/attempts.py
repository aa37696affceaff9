"""Store calls that have to be made, whatever interrupts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from celery_exclusive.errors import ExclusiveError

T = TypeVar("T")

_MOST_INTERRUPTIONS = 3


class Attempts:
    """Makes one store call, up to `most` times while it fails: every store operation can be repeated.

    A soft time limit, or a termination, may raise into the call anywhere: it is made again, and
    `interruption` is that error, which the caller decides about. `is_repeated`: the store has failed to
    answer before, and may have executed the operation then.
    """

    def __init__(self, most: int = 1) -> None:
        self._left = most
        self.interruption: BaseException | None = None
        self.is_repeated = False

    def make(self, call: Callable[[], T]) -> T:
        """Return the store's answer. If the last attempt fails, its error has the `interruption`."""
        interruptions = 0
        while True:
            try:
                return call()
            except ExclusiveError as error:
                if isinstance(self.interruption, Exception):
                    error.interruption = self.interruption
                elif self.interruption:
                    raise self.interruption from None
                self._left -= 1
                if self._left <= 0:
                    raise
                self.is_repeated = True
            except BaseException as error:
                self.interruption = error
                interruptions += 1
                if interruptions == _MOST_INTERRUPTIONS:
                    raise
