"""A sweep: all points of scenarios, or some of them, on lanes of one stack."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.worker.crashes.case import Case
from tests.worker.crashes.lane import Lane
from tests.worker.crashes.points import Point, points_of
from tests.worker.crashes.scenarios import Scenario
from tests.worker.crashes.stack import Stack

TRIES = 3
"""How often a case is tried until its process comes to the point: which child runs a task differs."""
LEAST_REACHED = 0.5
"""The part of the points that is reached at least, but of a single one. The tasks of a chord come to other
children each time, and a child that gets one task has fewer points than one that got two when they were
counted."""


class Sweep:
    """One of them.

    sweep = Sweep(make_lane, stack)
    sweep.run(SCENARIOS["free key"])
    sweep.conclude()

    Parameters:
        point: the one to try, as it is written; "" for all.
    """

    def __init__(self, make_lane: Callable[[Stack], Lane], stack: Stack, point: str = "") -> None:
        self._make_lane, self.stack, self.point = make_lane, stack, point
        self._lane: Lane | None = None
        self._tried = self._reached = 0
        self._faults: list[str] = []
        self._began = time.monotonic()

    def run(self, scenario: Scenario, is_chosen: Callable[[int], bool] = lambda _: True) -> None:
        """Try the chosen points of a scenario. After a fault the others are tried on a new lane."""
        for number, point in enumerate(self._points(scenario)):
            if not is_chosen(number) or self.point not in ("", str(point)):
                continue
            began = time.monotonic()
            self._tried += 1
            try:
                was_reached = any(self._case(scenario).run(point) for _ in range(TRIES))
            except AssertionError as fault:
                self._note(scenario, point, str(fault))
                continue
            self._reached += was_reached
            seconds = time.monotonic() - began
            _say(f"{scenario.name}: {point}{'' if was_reached else ': not reached'}: {seconds:.1f} s")

    def conclude(self, how: str = "") -> None:
        """Fail if there were faults, or if few points were reached."""
        seconds = time.monotonic() - self._began
        _say(f"{how} {self.stack}: {self._reached} of {self._tried} points reached in {seconds:.0f} s")
        assert not self._faults, "\n".join(self._faults)
        assert self._tried or not self.point, f"no such point: {self.point}"
        assert self._reached >= (1 if self.point else int(LEAST_REACHED * self._tried))

    def _points(self, scenario: Scenario) -> list[Point]:
        """Play the scenario without an end, to warm the lane and to count."""
        for _ in range(2):
            counts = self._case(scenario).count()
        points = points_of(counts)
        _say(f"{scenario.name}: {len(points)} points, {counts}")
        assert len(points) >= scenario.fewest, counts
        return points

    def _case(self, scenario: Scenario) -> Case:
        if self._lane is None:
            self._lane = self._make_lane(self.stack)
        return Case(self._lane, scenario, self.stack.is_late)

    def _note(self, scenario: Scenario, point: Point, fault: str) -> None:
        assert self._lane
        command = f"make crashes STACK={self.stack} SCENARIO='{scenario.name}' POINT='{point}'"
        self._faults.append(f"{command}\n    {fault}")
        _say(f"{command}\n    {fault}\n{self._lane.story()}")
        self._lane.close()
        self._lane = None


def _say(what: str) -> None:
    """Print what pytest shows of a failed test."""
    print(what)  # noqa: T201
