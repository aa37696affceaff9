"""Checks the numbers in options and settings: seconds and counts."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeGuard, cast

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_exclusive.core.records import SECOND

#: Seconds. A shorter lease would need more renewals than a store can answer.
MIN_TTL: Final = 0.1
#: Seconds: 5 years. Added to the clock, in microseconds, it is exact in the doubles of Redis until 2250, and
#: in seconds it fits into the 32 bits of memcached until 2033.
LONGEST: Final = 157_766_400
#: It fits into 32 bits, also when a store looks at twice as many entries.
MOST: Final = 1_000_000_000
A_COUNT: Final = f"a whole number from 1 to {MOST}"
HEAVIEST: Final = 100
A_WEIGHT: Final = f"a whole number from 1 to {HEAVIEST}"
UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The seconds of each unit in which users write a time."""
Time = float | timedelta
"""What users give as a time: seconds, or a timedelta."""


def seconds(time: Any) -> Any:
    """Return the seconds of a timedelta, and any other value as it is, to be checked."""
    return time.total_seconds() if isinstance(time, timedelta) else time


def seconds_from(least: float = MIN_TTL, most: float = LONGEST) -> str:
    """Describe what `is_duration` accepts."""
    return f"a number of seconds from {least} to {most}, or a timedelta"


def is_duration(value: object, at_least: float = MIN_TTL, at_most: float = LONGEST) -> TypeGuard[float]:
    """Whether the value is an int or float, no bool, of as many seconds as every store can keep."""
    return is_number(value, at_least) and value <= at_most


def is_number(value: object, at_least: float) -> TypeGuard[float]:
    """Whether the value is a finite int or float, no bool, and not below `at_least`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and at_least <= value < math.inf


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is an int, no bool, from 1 to the highest count that every store can keep."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def is_weight(value: object) -> TypeGuard[int]:
    return is_count(value) and value <= HEAVIEST


def microseconds(seconds: float) -> int:
    """Return a computed time as a store can keep it: from 0 to `LONGEST`, 0 for NaN."""
    return round(min(max(0, seconds), LONGEST) * SECOND)


def seconds_until(moment: datetime | str) -> float:
    """Return the seconds until a moment, which may be ISO text; without a zone it is UTC, as for Celery."""
    left = maybe_make_aware(cast("datetime", maybe_iso8601(moment))) - datetime.now(timezone.utc)
    return float(left.total_seconds())


def microseconds_until(moment: datetime | str | None) -> int | None:
    """Return the microseconds until a moment, 0 if it has come; None: there is no such moment."""
    return None if moment is None else microseconds(seconds_until(moment))


def no_longer_than(ttl: int, left: float) -> int:
    """Limit microseconds to `left` seconds, but not below `MIN_TTL`."""
    return min(ttl, microseconds(max(MIN_TTL, left)))
