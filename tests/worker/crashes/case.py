"""A case: a scenario in which one process ends at one point, and what must be so afterwards."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from tests.worker.crashes.lane import DEADLINE, Lane
from tests.worker.crashes.points import Point
from tests.worker.crashes.scenarios import Scenario
from tests.worker.crashes.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """One of them, on a lane."""

    lane: Lane
    scenario: Scenario
    is_late: bool

    def count(self) -> dict[str, int]:
        """Play the scenario to its end, and return how many requests each role makes."""
        self.run(Point())
        counts: defaultdict[str, int] = defaultdict(int)
        for event in self.lane.record.events("request", moment="after"):
            counts[event["role"]] = max(counts[event["role"]], event["number"])
        assert counts.keys() >= set(self.scenario.needs), counts
        most = self.scenario.most
        return {role: min(counts[role], most) for role in self.scenario.roles if role in counts}

    def run(self, point: Point) -> bool:
        """Play it with the end of a process at this point; False if no process has come there."""
        lane = self.lane
        lane.begin(point)
        key = f"{self.scenario.name}:{lane.case}"
        self.scenario.play(lane, key)
        self._settle(key)
        was_reached = lane.end is not None
        lane.finish()
        return was_reached

    def _settle(self, key: str) -> None:
        """Wait until all is done that has to be, and the key is free; then look for what must not be."""
        lane, verdict = self.lane, Verdict(self.lane, self.is_late)
        for call in list(lane.calls):
            lane.eventually(
                lambda call=call: verdict.has_ended(call) or verdict.is_excused(call),
                f"the end of {call.tag}: it was lost",
            )
        lane.settle()
        lane.disarm()
        self._probe(key)
        lane.settle()
        faults = list(verdict.faults())
        assert not faults, faults

    def _probe(self, key: str) -> None:
        """Call until a call of the key runs: a queued one may end as a duplicate of an older one."""
        lane, deadline = self.lane, time.monotonic() + DEADLINE

        def is_over(id: str) -> bool:
            return bool(lane.journal.events("end", id=id) or lane.lab.app.AsyncResult(id).ready())

        while not lane.journal.events("end", tag="probe"):
            assert time.monotonic() < deadline, "each next call of the key is a duplicate"
            id = lane.call(self.scenario.task, key, "probe", to=lane.survivor).id
            lane.eventually(lambda id=id: is_over(id), "the end of the next call of the key")
