"""How fast each system runs 20,000 tasks that do nothing, on ten slots: `python -m bench.compare --speed`.

Meant for a machine that does nothing else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from bench import size
from bench.compare.body import Event
from bench.compare.stage import Stage
from bench.compare.system import FAMILY, System

COUNT, SLOTS, KEYS = 20_000, 10, 200
MOST, IDLE, IDLE_AFTER_DEATH = 90.0, 30.0, 75.0
"""Seconds of a worker for all runs, and seconds without the end of a run after which no other is expected."""
NOISY = "noisy"


class Load(NamedTuple):
    """A load: the key of each call, by its number, and what is measured besides the time."""

    key_of: Callable[[int], str]
    has_lock: bool = True
    has_hand_off: bool = False
    kills: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one load: numbers of calls, and seconds.

    Parameters:
        called: the calls that were accepted.
        dropped: those that a worker dropped.
        makespan: from the first start to the last end.
        overtaking: runs that began before an earlier call of their key.
        half, late: p50 and p99 of the time from the end of a run to the start of the next one of its key.
        others: when the last call of the quiet tenants had ended.
        is_killed: whether a run was killed. `again`: when it began again.
    """

    called: int
    ran: int
    dropped: int
    makespan: float
    overtaking: int
    half: float | None = None
    late: float | None = None
    others: float | None = None
    is_killed: bool = False
    again: float | None = None

    def __str__(self) -> str:
        if not self.ran:
            return f"none of {self.called:,} had run when the load ended, after 90 s"
        of = "" if self.ran == self.called else f" of {self.called:,}"
        said = [f"{self.ran:,}{of} in {self.makespan:.1f} s"]
        if self.dropped:
            said.append(f"{self.dropped:,} dropped")
        if self.half is not None and self.late is not None:
            said.append(f"next run after {1000 * self.half:.1f} ms, p99 {1000 * self.late:.1f} ms")
        if self.others is not None:
            said.append(f"quiet tenants done after {self.others:.1f} s")
        if self.is_killed:
            again = "not again" if self.again is None else f"again after {self.again:.0f} s"
            said.append(f"killed call {again}")
        if self.overtaking:
            said.append(f"{self.overtaking:,} out of order")
        return "<br>".join(said)


def loads_of(system: System) -> list[str]:
    """Return the loads that a system is measured with.

    What refuses duplicates has no load in which calls share a key. Without a lock Celery's family is Celery.
    """
    if "speed" in system.lacks:
        return []
    if system.refuses:
        return ["a key each", "killed worker"]
    return [name for name, load in LOADS.items() if load.has_lock or system.name not in FAMILY[1:]]


def settings_of(system: System, load: Load) -> list[dict[str, Any]]:
    return [{}, {"is_tuned": True}] if system.tuned and load.has_lock else [{}]


def run(system: System, python: Path, name: str, setting: dict[str, Any]) -> Figures:
    """Play this load with this setting of the system."""
    load = LOADS[name]._replace(key_of=str) if system.refuses else LOADS[name]
    with Stage(system, python, slots=SLOTS, is_bare=not load.has_lock, **setting) as stage:
        return measure(stage, load)


def measure(stage: Stage, load: Load) -> Figures:
    """Publish all calls, start a worker, and wait until all of them have run."""
    count = size.scaled(COUNT)
    held = f"held#{count // 8}" if load.kills else ""
    tags = [f"noop#{number}" for number in range(count)]
    if held:
        tags[count // 8] = held
    keys = {tag: load.key_of(number) for number, tag in enumerate(tags)}
    stage.open("noop")
    stage.start_worker().kill()  # it has made the tables that some systems need
    called = sum(stage.send(tag, key) == "sent" for tag, key in keys.items())
    worker, killed = stage.start_worker(), 0.0
    if held:
        stage.wait_for("start", held, MOST)
        wait_for_ends(stage, called // 4, IDLE)
        worker.kill()
        killed = time.monotonic()
        stage.open("held")
        stage.start_worker()
    wait_for_ends(stage, called, IDLE_AFTER_DEATH if held else IDLE)
    starts = stage.events("start")
    found = figures(keys, called, starts, stage.events("end"), dropped=len(stage.events("skipped")))
    if held:
        again = (event.at - killed for event in starts if event.tag == held and event.at > killed)
        found = replace(found, is_killed=True, again=next(again, None))
    return found if load.has_hand_off else replace(found, half=None, late=None)


def wait_for_ends(stage: Stage, count: int, idle: float) -> None:
    """Wait until so many runs have ended, or none has for a while since the last one, or the time is up."""
    ended, until = 0, (deadline := time.monotonic() + MOST)
    while ended < count and time.monotonic() < until:
        time.sleep(0.05)
        if (now := stage.ended()) > ended:
            ended, until = now, min(time.monotonic() + idle, deadline)


def figures(
    key_of: dict[str, str], called: int, starts: list[Event], ends: list[Event], *, dropped: int = 0
) -> Figures:
    """Return the figures of a journal, for calls that were sent in the order of their numbers."""
    begin = min((event.at for event in starts), default=0.0)
    ended = {event.tag: event.at - begin for event in ends}
    order: dict[str, list[int]] = defaultdict(list)
    for tag in dict.fromkeys(event.tag for event in starts):
        order[key_of[tag]].append(_number(tag))
    busiest = max(order, key=lambda key: len(order[key]), default="")
    gaps = hand_offs(event for event in starts + ends if key_of[event.tag] == busiest)
    parts = quantiles(gaps, n=100, method="inclusive") if len(gaps) > 1 else [0.0] * 99
    quiet = [tag for tag, key in key_of.items() if key != NOISY]
    others = None
    if NOISY in order and all(tag in ended for tag in quiet):
        others = max(ended[tag] for tag in quiet)
    return Figures(
        called,
        len(ended),
        dropped,
        max(ended.values(), default=0.0),
        sum(map(overtaking, order.values())),
        parts[49],
        parts[98],
        others,
    )


def hand_offs(events: Iterable[Event]) -> list[float]:
    """Return the seconds from each end to the next start of one key, where nothing was between them."""
    gaps, ended = list[float](), None
    for event in sorted(events):
        if event.what == "start" and ended is not None:
            gaps.append(event.at - ended)
        ended = event.at if event.what == "end" else None
    return gaps


def overtaking(numbers: list[int]) -> int:
    """Return how many of these runs began before an earlier call: 1 for the order 3 1 2."""
    least, count = numbers[-1], 0
    for number in reversed(numbers):
        count += number > least
        least = min(least, number)
    return count


def noisy(number: int) -> str:
    """Return the key of a call where one tenant makes nine of ten calls."""
    return NOISY if number % 10 else f"tenant-{number % 190}"


def _number(tag: str) -> int:
    return int(tag.partition("#")[2])


LOADS = {
    "no lock": Load(str, has_lock=False),
    "a key each": Load(str),
    "one key": Load(lambda _number: "key", has_hand_off=True),
    f"{KEYS} keys": Load(lambda number: str(number % KEYS)),
    "noisy tenant": Load(noisy, has_hand_off=True),
    "killed worker": Load(lambda number: str(number % KEYS), kills=True),
}
