"""Totals of all keys by task, for monitors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.records import NOT_BEGUN, SECOND
from celery_exclusive.operate.look import Group, look
from celery_exclusive.operate.room import Room
from celery_exclusive.operate.states import task_of, tasks_by_key, tasks_with_options

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Snapshot

SHARED: Final = "-"
"""The name of all keys that belong to no single task: strings of `key=` and `lock()`."""
OTHER: Final = "other"
"""The name of all tasks that this app does not have, and of those beyond the most that are named."""
_GREATEST: Final = ("oldest_wait", "longest_line")
"""The fields that are no sums."""
_ESTIMATED: Final = ("running", "queued", "period")
"""The fields that are estimates if not all states were read."""


@dataclass(slots=True)
class Totals:
    """The totals of a task's keys; `oldest_wait` is in seconds.

    `dead`: running ones whose lease has expired. `aside`: out of the line, since no worker accepts them.
    `longest_line`: of one key. `paused`: or held back.
    """

    running: int = 0
    queued: int = 0
    period: int = 0
    dead: int = 0
    waiting: int = 0
    aside: int = 0
    longest_line: int = 0
    oldest_wait: float = 0
    damaged: int = 0
    paused: int = 0

    def add(self, other: Totals) -> None:
        for each in fields(self):
            both = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(both) if each.name in _GREATEST else sum(both))


def totals(services: Services, most: int) -> tuple[dict[str, Totals], float]:
    """Return the totals of each task that has a key or options, and the part of the states that were read.

    The holders are estimates then. Dead ones, damaged and paused keys and the oldest wait are of these states
    alone. Beyond `most`, the tasks with the fewest waiting tasks and holders count together as `OTHER`, and
    so do keys with the name of a task that this app does not have.
    """
    by_key = tasks_by_key(services)

    def name_of(key: str) -> str:
        return task_of(key, by_key) or (SHARED if key[1:2] == "=" else OTHER)

    seen = look(services.store, name_of)
    found = defaultdict[str, Totals](Totals, {task.name: Totals() for task in tasks_with_options(services)})
    for line in seen.lines.values():
        found[name_of(line.key)].add(
            Totals(waiting=line.waiting, aside=line.aside, longest_line=line.waiting)
        )
    for group in seen.groups:
        found[group.name].add(_of(group))
    ranked = sorted(found, key=lambda name: _rank(name, found[name]))
    named = {name: found[name] for name in ranked[:most]}
    for name in ranked[most:]:
        named.setdefault(OTHER, Totals()).add(found[name])
    return named, seen.ratio


def _of(group: Group) -> Totals:
    found = Totals()
    for snapshot in group.states.values():
        found.add(_of_key(snapshot))
    for name in _ESTIMATED:
        setattr(found, name, round(getattr(found, name) * group.weight))
    return found


def _of_key(snapshot: Snapshot) -> Totals:
    found = Totals(damaged=int(bool(snapshot.problem)))
    found.paused = int(Room.of(snapshot).closed_by in ("paused", "hold"))
    found.running = snapshot.others  # only running tasks share a key
    for owner in snapshot.holders:
        if owner.phase == "period":
            found.period += 1
        elif owner.phase in NOT_BEGUN:
            found.queued += 1
        else:
            found.running += 1
            found.dead += owner.remaining <= 0
    found.oldest_wait = (
        max((task.age for task in snapshot.line if task.not_before is None), default=0) / SECOND
    )
    return found


def _rank(name: str, totals: Totals) -> tuple[bool, int, int, str]:
    """Return the place of a name. `OTHER` comes last: publishers can forge keys of it."""
    return (
        name == OTHER,
        -(totals.waiting + totals.aside),
        -(totals.running + totals.queued + totals.period),
        name,
    )
