"""A process ends right before or after one of its requests: no task is lost, repeated, or waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import date

import pytest

from tests.worker.crashes.lane import Lane
from tests.worker.crashes.scenarios import SCENARIOS
from tests.worker.crashes.stack import STACKS, Stack
from tests.worker.crashes.sweep import Sweep

SHARES = 37
"""A prime: each share has kills and pauses, and those before and after requests."""
DAY = date.today().toordinal()  # noqa: DTZ011
CHOSEN = int(os.environ.get("CRASHES_SHARE") or DAY % SHARES)
"""The share of all points that `make test` tries: another one each day, on the next stack."""
POINT = os.environ.get("CRASHES_POINT", "")


def chosen(of: str, names: Iterable[str]) -> list[str]:
    """Return those of these names that `make crashes` is to try."""
    part = os.environ.get(f"CRASHES_{of}", "")
    found = [name for name in names if part in name]
    if not found:
        raise pytest.UsageError(f"{of}={part} is none of {', '.join(names)}")
    return found


@pytest.mark.promise(
    "A publisher, a child or a worker is killed right before or after any of its requests to broker, store "
    "or result backend, or stands still there for longer than `ttl`: no task is lost or repeated that plain "
    "Celery would not lose or repeat, none that was in line or at the broker is lost, no two tasks of a key "
    "run at once, no duplicate runs, the order of publishing holds, a window runs with its newest arguments, "
    "no lease outlives a dead worker, no key stays held, and a chord is complete",
    name="crash points",
    broke=(
        "acknowledged when a child accepts it; key and message of a unique call in two requests; no "
        "second offer"
    ),
)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_point_in_thirty_seven(make_lane: Callable[[Stack], Lane], name: str) -> None:
    """CRASHES_SHARE chooses the share, CRASHES_STACK the stack."""
    stacks = chosen("STACK", STACKS)
    sweep = Sweep(make_lane, STACKS[stacks[DAY % len(stacks)]])
    place = [*SCENARIOS].index(name)
    sweep.run(SCENARIOS[name], lambda number: (number + place) % SHARES == CHOSEN)
    sweep.conclude(f"CRASHES_SHARE={CHOSEN}")


@pytest.mark.proves("crash points")
@pytest.mark.large
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", chosen("SCENARIO", SCENARIOS))
@pytest.mark.parametrize("stack", chosen("STACK", STACKS))
def test_all_points(make_lane: Callable[[Stack], Lane], stack: str, name: str) -> None:
    sweep = Sweep(make_lane, STACKS[stack], POINT)
    sweep.run(SCENARIOS[name])
    sweep.conclude()
