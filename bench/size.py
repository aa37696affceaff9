"""How much is measured: with BENCH_FULL=1 a million leases, too; with BENCH_SMOKE=1 next to nothing."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("BENCH_FULL"))
SMOKE = bool(os.environ.get("BENCH_SMOKE"))


def scaled(count: int, full: int = 0) -> int:
    """Return the number of calls, tasks or rounds that stands for `count`, or with BENCH_FULL for `full`."""
    if SMOKE:
        return max(1, count // 200)
    return full if FULL and full else count
