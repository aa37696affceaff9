"""Times that were computed, as stores can keep them."""

from __future__ import annotations

import math

import pytest

from celery_exclusive.core.records import SECOND
from celery_exclusive.options.amounts import LONGEST, microseconds, no_longer_than

pytestmark = pytest.mark.promise(
    "Times that are computed are cut to the bounds of the stores, without an error of ours",
    name="computed times",
    broke="a sum, or a tombstone, that is not cut; NaN",
)


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        (1.5, 1_500_000),
        (-5, 0),
        (LONGEST, LONGEST * SECOND),
        (LONGEST + 1, LONGEST * SECOND),
        (10**400, LONGEST * SECOND),
        (1e308, LONGEST * SECOND),
        (math.inf, LONGEST * SECOND),
        (-math.inf, 0),
        (math.nan, 0),
    ],
)
def test_a_computed_time_is_capped_and_never_an_error(seconds: float, kept: int):
    assert microseconds(seconds) == kept


@pytest.mark.parametrize(
    ("left", "kept"), [(math.inf, 100.0), (10**400, 100.0), (-1, 0.1), (math.nan, 0.1), (7, 7.0)]
)
def test_a_time_is_cut_short_but_not_to_nothing(left: float, kept: float):
    assert no_longer_than(100 * SECOND, left) == kept * SECOND
