"""Totals of all keys by task, for monitors: one look at each key, a hundred of them in a request."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.records import NOT_BEGUN, SECOND
from celery_exclusive.operate.states import task_of, tasks_by_key, tasks_with_options
from celery_exclusive.options.key_text import without_hash
from celery_exclusive.stores.base import Snapshot, states

if TYPE_CHECKING:
    from celery_exclusive.services import Services

SHARED: Final = "-"
"""The name of all keys that belong to no single task: strings of `key=` and `lock()`."""
OTHER: Final = "other"
"""The name of all tasks beyond the most that are named."""
_GREATEST: Final = ("oldest_wait", "longest_line")
"""The fields that are no sums."""


@dataclass(slots=True)
class Totals:
    """The totals of a task's keys.

    * `running`, `queued`, `period`: the holders in each state of `locks ls`. `dead`: the running ones whose
      lease has expired.
    * `waiting`: the tasks in line. `aside`: the tasks out of the line, since no worker accepts them.
    * `longest_line`: the most tasks in line for one key. `oldest_wait`: seconds.
    * `damaged`: the keys whose data cannot be read.
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

    def add(self, other: Totals) -> None:
        """Count other keys as well."""
        for each in fields(self):
            both = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(both) if each.name in _GREATEST else sum(both))


def totals(services: Services, most: int) -> dict[str, Totals]:
    """Return the totals of each task that has a key, and of all tasks of the app with options.

    Parameters:
        most: the most tasks that are named, those with the most waiting tasks and holders. The others are
            counted together, as `OTHER`.

    Raises:
        StoreUnavailable: the store does not answer.
        ExclusiveError: it cannot list its keys.
    """
    by_key = tasks_by_key(services)
    found = defaultdict[str, Totals](Totals, {task.name: Totals() for task in tasks_with_options(services)})
    for key, snapshot in states(services.store, list(services.store.scan())):
        found[task_of(key, by_key) or _name_in(key)].add(_of(snapshot))
    ranked = sorted(found, key=lambda name: _rank(name, found[name]))
    if len(ranked) <= most:
        return dict(found)
    named = {name: found[name] for name in ranked[:most]}
    rest = named.setdefault(OTHER, Totals())
    for name in ranked[most:]:
        rest.add(found[name])
    return named


def _name_in(key: str) -> str:
    """Return the name in the key of a task that this app does not know."""
    return SHARED if key[1:2] == "=" else without_hash(key)[2:]


def _of(snapshot: Snapshot) -> Totals:
    found = Totals(waiting=snapshot.waiting, aside=snapshot.aside, longest_line=snapshot.waiting)
    found.damaged = int(bool(snapshot.problem))
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


def _rank(name: str, totals: Totals) -> tuple[int, int, str]:
    return -(totals.waiting + totals.aside), -(totals.running + totals.queued + totals.period), name
