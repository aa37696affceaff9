"""How fast each system runs 20,000 tasks that do nothing, on ten slots: `python -m bench.compare --speed`.

Meant for a machine that does nothing else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from bench import size
from bench.compare.body import Event
from bench.compare.stage import Stage
from bench.compare.system import System

COUNT, SLOTS, KEYS = 20_000, 10, 200
IDLE, MOST = 60.0, 120.0
"""Seconds without the end of a run, after which no other is expected, and seconds for all runs of a load."""


class Figures(NamedTuple):
    """Figures of one load, in seconds, and in runs that began before a run called earlier.

    * `ran`: the calls that ran to their end.
    * `half`, `late`: p50 and p99 of the time from the end of a run to the start of the next one of its key.
    """

    ran: int
    makespan: float
    half: float
    late: float
    overtaken: int

    def __str__(self) -> str:
        said = [f"{self.ran:,} in {self.makespan:.1f} s"]
        if self.late:
            said.append(f"{1000 * self.half:.1f} and {1000 * self.late:.1f} ms")
        if self.overtaken:
            said.append(f"{self.overtaken:,} overtaken")
        return "; ".join(said)


def run(system: System, python: Path) -> Iterator[tuple[str, dict[str, Any], Figures]]:
    """Play each load by the system's defaults and with its sensible setting."""
    for name, keys in LOADS.items():
        for setting in ({}, {"is_tuned": True}) if system.tuned else ({},):
            with Stage(system, python, slots=SLOTS, **setting) as stage:
                yield name, setting, measure(stage, keys, kills=name == "killed worker")


def measure(stage: Stage, key_of: Callable[[int], str], *, kills: bool) -> Figures:
    """Publish all calls, start a worker, and wait until all of them have run."""
    stage.open("noop")
    keys = {f"noop#{number}": key_of(number) for number in range(size.scaled(COUNT))}
    stage.start_worker().kill()  # it has made the tables that some systems need
    accepted = sum(stage.send(tag, key) == "sent" for tag, key in keys.items())
    worker = stage.start_worker()
    if kills:
        wait_for_ends(stage, accepted // 4)
        worker.kill()
        stage.start_worker()
    wait_for_ends(stage, accepted)
    return figures(keys, stage.events("start"), stage.events("end"))


def wait_for_ends(stage: Stage, count: int) -> None:
    """Wait until so many runs have ended, or none has for a while, or the time is up."""
    ended, since = 0, time.monotonic()
    deadline = since + MOST
    while ended < count and time.monotonic() < min(since + IDLE, deadline):
        time.sleep(0.5)
        if (now := len(stage.events("end"))) > ended:
            ended, since = now, time.monotonic()


def figures(key_of: dict[str, str], starts: list[Event], ends: list[Event]) -> Figures:
    """Return the figures of a journal, for calls that were sent in the order of their numbers."""
    began: dict[str, list[Event]] = defaultdict(list)
    ended = {event.tag: event.at for event in ends}
    for event in starts:
        began[key_of[event.tag]].append(event)
    gaps: list[float] = []
    overtaken = 0
    for events in began.values():
        for one, other in pairwise(events):
            gaps.append(max(0.0, other.at - ended.get(one.tag, other.at)))
            overtaken += _number(other.tag) < _number(one.tag)
    parts = quantiles(gaps, n=100) if len(gaps) > 1 else [0.0] * 99
    makespan = max(ended.values(), default=0.0) - min((event.at for event in starts), default=0.0)
    return Figures(len(ended), makespan, parts[49], parts[98], overtaken)


def noisy(number: int) -> str:
    """Return the key of a call where one tenant makes nine of ten calls."""
    return "noisy" if number % 10 else f"tenant-{number % 190}"


def _number(tag: str) -> int:
    return int(tag.partition("#")[2])


LOADS: dict[str, Callable[[int], str]] = {
    "a key each": lambda number: f"key-{number}",
    "one key": lambda _number: "key",
    f"{KEYS} keys": lambda number: f"key-{number % KEYS}",
    "noisy tenant": noisy,
    "killed worker": lambda number: f"key-{number % KEYS}",
}
