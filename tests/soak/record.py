"""The journal of a round, read: calls, bodies, and what befell them. It knows nothing of the library."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Event = dict[str, Any]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """A body, from its begin to its end or the death of its process."""

    begin: Event
    until: float
    how: str

    @property
    def since(self) -> int:
        return int(self.begin["at"])

    @property
    def is_done(self) -> bool:
        return self.how in ("return", "fail", "superseded")

    def units(self, cost: Any) -> int:
        return int(self.begin["cost"] if cost == "cost" else cost)


@dataclass(frozen=True)
class Call:
    """What the caller wanted, what it was answered, and the result when all was over."""

    calling: Event
    called: Event
    id: str
    state: str

    @property
    def number(self) -> int:
        return int(self.calling["number"])

    @property
    def since(self) -> int:
        return int(self.calling["at"])

    @property
    def until(self) -> int:
        return int(self.called["at"])

    @property
    def is_plain(self) -> bool:
        return bool(self.calling["form"] == "plain")

    @property
    def is_sent(self) -> bool:
        return "error" not in self.called and self.called.get("outcome") not in ("skipped", "updated")


class Record:
    def __init__(self, events: Sequence[Event]) -> None:
        self.of: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self.of[event["what"]].append(event)
        (self.round,) = self.of["round"]
        self.ttl = self.round["ttl"] * SECOND
        self.last = max(event["at"] for event in events)
        self.tasks: dict[str, Event] = {task["name"]: task for task in self.round["tasks"]}
        self.revoked = {number for event in self.of["revoked"] for number in event["numbers"]}

    @cached_property
    def runs(self) -> dict[int, list[Run]]:
        """The runs of each call, in the order of their begins."""
        ends = {event["run"]: event for event in self.of["end"]}
        found: defaultdict[int, list[Run]] = defaultdict(list)
        for begin in sorted(self.of["begin"], key=lambda event: event["at"]):
            end = ends.get(begin["run"])
            found[begin["number"]].append(
                Run(begin, end["at"], end["how"]) if end else Run(begin, self._death(begin), "open")
            )
        return found

    def _death(self, begin: Event) -> float:
        deaths = [it["since"] for it in self.of["killed"] if _is_of(begin, it) and it["at"] > begin["at"]]
        return min(deaths, default=math.inf)

    @cached_property
    def calls(self) -> dict[int, Call]:
        called = {number: event for event in self.of["called"] for number in event["numbers"]}
        results = {event["number"]: event for event in self.of["result"]}
        return {
            number: Call(event, called[number], result.get("id", ""), result.get("state", "PENDING"))
            for event in self.of["calling"]
            if (number := event["number"]) in called
            for result in [results.get(number, {})]
        }

    def keys_of(self, kind: str) -> Iterator[tuple[Event, list[Run], list[Call]]]:
        """Yield each key of this kind of option: the option, the runs and the calls in their order."""
        runs: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
        calls: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for run in sorted((it for found in self.runs.values() for it in found), key=lambda it: it.since):
            runs[self._key(run.begin)].append(run)
        for call in sorted(self.calls.values(), key=lambda it: it.since):
            calls[self._key(call.calling)].append(call)
        for group, key in {**runs, **calls}:
            if option := self.tasks[group].get(kind):
                yield option, runs[group, key], calls[group, key]

    def _key(self, event: Event) -> tuple[str, str]:
        return self.tasks[event["task"]]["group"], event["key"]

    def faults(
        self,
        since: float,
        until: float,
        kinds: str = "killed stalled restarted outage",
        run: Run | None = None,
    ) -> list[Event]:
        """Return what befell servers and workers between these instants; of workers, only that of a run."""
        events = [event for kind in kinds.split() for event in self.of[kind]]
        near = [event for event in events if event["since"] <= until and event["at"] >= since]
        return [event for event in near if not run or "pids" not in event or _is_of(run.begin, event)]

    def forced(self, event: Event, since: float = 0, until: float = math.inf) -> list[int]:
        """Return since when an operator released the key of a call or a run, between these instants."""
        mine = [it for it in self.of["forced"] if self._key(it) == self._key(event)]
        return [it["since"] for it in mine if it["since"] <= until and it["at"] >= since]

    def lapse(self, run: Run) -> float:
        """Return when the lease of a run may have ended, though it ran on."""
        faults = self.faults(run.since - self.ttl, run.until, "stalled outage", run)
        lapses = [it["since"] for it in faults if it["at"] - it["since"] > self.ttl / 2]
        return max(run.since, min([*lapses, *self.forced(run.begin, run.since)], default=math.inf))


def _is_of(begin: Event, fault: Event) -> bool:
    """Whether a fault befell the process of a run, or the main process of its worker."""
    return bool({begin["pid"], begin["main"]} & {*fault["pids"]})
