"""Finds the keys that a person should look at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from celery_exclusive.core.records import SECOND
from celery_exclusive.operate.look import look
from celery_exclusive.operate.room import Room

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Snapshot, Store

Problem = Literal["damaged", "dead", "aside", "no_worker", "paused", "long_wait"]
"""The problems of a key, the worst first.

* `damaged`: its data cannot be read.
* `dead`: an expired lease, of a run that no worker has recovered yet.
* `aside`: no worker accepted the offers of waiting tasks.
* `no_worker`: none holds the key, and the first in line has waited for a minute.
* `paused`: for an hour or longer, and tasks wait.
* `long_wait`: the first in line has waited for ten minutes.
"""
NO_WORKER_AFTER: Final = 60
"""The seconds for which a key may have waiting tasks and no holder. An offer lasts 5 s, and is repeated."""
LONG_WAIT: Final = 600
"""The seconds after which a wait is long."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All keys of a store in numbers, and the keys with a problem, in order.

    `holders`: an estimate unless all states were read. `ratio`: of the states; others may have problems, too.
    """

    keys: int
    holders: int
    waiting: int
    problems: dict[Problem, list[str]]
    ratio: float


def overview(store: Store) -> Overview:
    found, problems = look(store), defaultdict[Problem, list[str]](list)
    for key, seen in sorted(found.states):
        if problem := _problem(seen):
            problems[problem].append(key)
    holders = sum(
        group.weight * sum(len(seen.holders) + seen.others for seen in group.states.values())
        for group in found.groups
    )
    waiting = sum(line.all_waiting for line in found.lines.values())
    return Overview(found.keys, round(holders), waiting, dict(problems), found.ratio)


def _problem(seen: Snapshot) -> Problem | None:
    if seen.problem:
        return "damaged"
    if any(owner.phase == "running" and owner.remaining <= 0 for owner in seen.holders):
        return "dead"
    if seen.aside:
        return "aside"
    waits = [one.age // SECOND for one in seen.line if one.not_before is None]
    longest = max(waits, default=0)
    room = Room.of(seen)
    if room.closed_by == "paused":
        return "paused" if seen.waiting and room.is_forgotten else None
    if not (seen.holders or room.closed_by) and longest >= NO_WORKER_AFTER:
        return "no_worker"
    return "long_wait" if longest >= LONG_WAIT else None
