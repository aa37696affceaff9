"""Numbers that people give: seconds and counts."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final, TypeGuard, cast

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_exclusive.core.document import SECOND

#: Seconds. A shorter lease would be renewed more often than a store can be asked.
MIN_TTL: Final = 0.1


def is_number(value: object, at_least: float) -> TypeGuard[float]:
    """Tell whether the value is a finite int or float, no bool, and not below `at_least`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and at_least <= value < math.inf


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether the value is an int from 1, no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def seconds_until(moment: datetime | str) -> float:
    """Tell how far away a moment is, also as Celery writes it; without a zone it is UTC, as for Celery."""
    left = maybe_make_aware(cast("datetime", maybe_iso8601(moment))) - datetime.now(timezone.utc)
    return float(left.total_seconds())


def no_longer_than(ttl: int, left: float) -> int:
    """Cut microseconds short to so many seconds, but not to nothing."""
    return min(ttl, round(max(left, MIN_TTL) * SECOND))
