"""Finds the keys that a person should look at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Snapshot, states

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

Problem = Literal["damaged", "dead", "aside", "no_worker", "long_wait"]
"""The problems of a key, the worst first.

* `damaged`: its data cannot be read.
* `dead`: the lease of a running task has expired, and no worker has recovered its run yet.
* `aside`: no worker accepted the offers of waiting tasks.
* `no_worker`: no task holds the key, and the first in line has waited for a minute.
* `long_wait`: the first in line has waited for ten minutes.
"""
NO_WORKER_AFTER: Final = 60
"""The seconds for which a key may have waiting tasks and no holder. An offer lasts 5 s, and is repeated."""
LONG_WAIT: Final = 600
"""The seconds after which a wait is long."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All keys of a store in numbers, and the keys with a problem, in order.

    * `keys`: how many have a holder or waiting tasks. `holders`, `waiting`: how many there are of all keys.
    """

    keys: int
    holders: int
    waiting: int
    problems: dict[Problem, list[str]]


def overview(store: Store) -> Overview:
    """Look at all keys. A hundred keys take a request.

    Raises:
        ExclusiveError: the store cannot list its keys.
        StoreUnavailable: the store does not answer.
    """
    keys = holders = waiting = 0
    problems = defaultdict[Problem, list[str]](list)
    for key, seen in states(store, list(store.scan())):
        keys += seen.is_busy
        holders += len(seen.holders) + seen.others
        waiting += seen.all_waiting
        if problem := _problem(seen):
            problems[problem].append(key)
    return Overview(keys, holders, waiting, dict(problems))


def _problem(seen: Snapshot) -> Problem | None:
    if seen.problem:
        return "damaged"
    if any(owner.phase == "running" and owner.remaining <= 0 for owner in seen.holders):
        return "dead"
    if seen.aside:
        return "aside"
    waits = [one.age // SECOND for one in seen.line if one.not_before is None]
    longest = max(waits, default=0)
    if not seen.holders and longest >= NO_WORKER_AFTER:
        return "no_worker"
    return "long_wait" if longest >= LONG_WAIT else None
