"""A process ends right before or after one of its requests: no task is lost, repeated, or waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date

import pytest

from tests.worker.crashes.lane import Lane
from tests.worker.crashes.scenarios import SCENARIOS
from tests.worker.crashes.stack import STACKS, Stack
from tests.worker.crashes.sweep import Sweep

SHARES = 10
DAY = date.today().toordinal()  # noqa: DTZ011
CHOSEN = int(os.environ.get("CRASHES_SHARE") or DAY % SHARES)
"""The share of all points that `make test` tries: another one each day, on another stack after each round."""
STACK, SCENARIO, POINT = (os.environ.get(f"CRASHES_{name}", "") for name in ("STACK", "SCENARIO", "POINT"))
"""What `make crashes` is to try, of all."""
each_stack = pytest.mark.parametrize("stack", [stack for stack in STACKS if STACK in str(stack)], ids=str)


@pytest.mark.promise(
    "A publisher, a child or a worker is killed right before or after any of its requests to broker, store "
    "or result backend, or stands still there for longer than `ttl`: no task is lost or repeated that plain "
    "Celery would not lose or repeat, no two tasks of a key run at once, no key stays held, and a chord is "
    "complete",
    name="crash points",
    broke=(
        "acknowledged when a child accepts it; key and message of a unique call in two requests; no "
        "second offer"
    ),
)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_tenth_of_all_points(make_lane: Callable[[Stack], Lane], name: str) -> None:
    """CRASHES_SHARE chooses the tenth, CRASHES_STACK the stack."""
    stacks = [stack for stack in STACKS if STACK in str(stack)]
    sweep = Sweep(make_lane, stacks[DAY // SHARES % len(stacks)])
    place = [*SCENARIOS].index(name)
    sweep.run(SCENARIOS[name], lambda number: (number + place) % SHARES == CHOSEN)
    sweep.conclude(f"CRASHES_SHARE={CHOSEN}")


@pytest.mark.proves("crash points")
@pytest.mark.large
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIO in name])
@each_stack
def test_all_points(make_lane: Callable[[Stack], Lane], stack: Stack, name: str) -> None:
    sweep = Sweep(make_lane, stack, POINT)
    sweep.run(SCENARIOS[name])
    sweep.conclude()
