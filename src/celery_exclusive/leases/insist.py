"""Store calls that end a run or a lease, and are completed despite interruptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from celery_exclusive.errors import ExclusiveError

T = TypeVar("T")


def insist(call: Callable[[], T]) -> tuple[T, BaseException | None, bool]:
    """Complete a store call like `finish`, and retry it once; return also whether it was repeated."""
    try:
        return *finish(call), False
    except Exception:  # noqa: BLE001 - the second error is raised
        return *finish(call), True


def finish(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Complete a store call, even if a signal handler raises into it; return the handler's exception.

    A soft time limit, or a termination, may interrupt the call anywhere. Every store operation can be
    repeated, so the call is repeated then. If the store does not answer, its error has the `interruption`.
    """
    interruption: BaseException | None = None
    for _ in range(3):
        try:
            return call(), interruption
        except ExclusiveError as error:
            if isinstance(interruption, Exception):
                error.interruption = interruption
            elif interruption:
                raise interruption from None
            raise
        except BaseException as error:  # noqa: BLE001 - returned, not swallowed
            interruption = error
    raise interruption or AssertionError
