"""Store calls that end something, and are made whatever interrupts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from celery_exclusive.errors import ExclusiveError

T = TypeVar("T")


def insist(call: Callable[[], T]) -> tuple[T, BaseException | None, bool]:
    """Do a store call that ends something like `finish`, a second time if it fails; tell also whether."""
    try:
        return *finish(call), False
    except Exception:  # noqa: BLE001 - that of the second time is raised
        return *finish(call), True


def finish(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Do a store call to its end, whatever a signal handler raises into it meanwhile.

    A soft time limit, or a termination, may land anywhere in it. Every verb can be repeated, so it is, and
    the interruption is told afterwards.
    """
    interruption: BaseException | None = None
    for _ in range(3):
        try:
            return call(), interruption
        except ExclusiveError:
            if interruption and not isinstance(interruption, Exception):
                raise interruption from None
            raise
        except BaseException as error:  # noqa: BLE001 - told, not swallowed
            interruption = error
    raise interruption or AssertionError
