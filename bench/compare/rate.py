"""How well each system keeps a rate of ten a second with four workers: `python -m bench.compare --rate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.compare.body import Event
from bench.compare.speed import overtaking
from bench.compare.stage import Stage
from bench.compare.system import System

RATE, WORKERS, SLOTS = 10, 4, 4
AT_ONCE, A_SECOND, SECONDS = 100, 20, 30
"""The calls at first, those that come in each second, and the seconds in which they do."""
PAUSE = 1.5
"""Seconds in which a rate without keys forgets the first call."""
ROW = "rate"
"""The name of these figures among the verdicts."""


class Rated(NamedTuple):
    """How a rate was kept.

    Parameters:
        most: the most starts in a span of one second, by the clocks of the bodies.
        a_second: how many calls a second began.
        overtaking: how many began before an earlier call.
    """

    most: int
    a_second: float
    overtaking: int


def settings_of(system: System) -> list[dict[str, Any]]:
    """Return the settings that a rate is played with: what Celery's family tunes is no matter of rates."""
    return [{}, {"is_tuned": True}] if system.name in ("docket", "dbos") else [{}]


def run(system: System, python: Path, setting: dict[str, Any]) -> Rated:
    """Play this system, by default or tuned."""
    with Stage(system, python, slots=SLOTS, rate=RATE, **setting) as stage:
        return measure(stage)


def measure(stage: Stage, seconds: float = SECONDS) -> Rated:
    """Send more calls than may start, to workers that are ready, and read the journal."""
    stage.open("noop", "first")
    for _ in range(WORKERS):
        stage.start_worker()
    stage.send("first", "another key")  # the caller has imported, and connected, before the load begins
    stage.wait_for("end", "first")
    time.sleep(PAUSE)
    sent, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        while sent < AT_ONCE + passed * A_SECOND:
            stage.send(f"noop#{sent}")
            sent += 1
        time.sleep(0.01)
    return rated([event for event in stage.events("start") if event.tag != "first"], seconds)


def rated(starts: list[Event], seconds: float) -> Rated:
    """Return the figures of these starts, all of so many seconds."""
    begun = sorted(starts)
    numbers = [int(event.tag.partition("#")[2]) for event in begun]
    return Rated(
        most_in_a_second([event.at for event in begun]),
        round(len(begun) / seconds, 1),
        overtaking(numbers) if numbers else 0,
    )


def most_in_a_second(at: list[float]) -> int:
    """Return the most of these sorted times that are within less than one second."""
    first = most = 0
    for number, now in enumerate(at):
        while now - at[first] >= 1:
            first += 1
        most = max(most, number - first + 1)
    return most
