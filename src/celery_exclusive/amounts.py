"""Numbers that people give: seconds and counts."""

from __future__ import annotations

import math
from typing import Final, TypeGuard

#: Seconds. A shorter lease would be renewed more often than a store can be asked.
MIN_TTL: Final = 0.1


def is_number(value: object, at_least: float) -> TypeGuard[float]:
    """Tell whether the value is a finite int or float, no bool, and not below `at_least`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and at_least <= value < math.inf


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether the value is an int from 1, no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
