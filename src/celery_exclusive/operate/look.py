"""A look at all keys of a store that costs it little for each of them: monitors look again and again.

It reads the names of all keys, the lengths of all lines by the store's index of them, and the states of at
most `MOST` keys: a state takes some fifty times as long as a name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import KEYS_AT_ONCE, KeyInLine, Snapshot
from celery_exclusive.system.deadline import deadline

if TYPE_CHECKING:
    from celery_exclusive.stores.base import Store

MOST: Final = 2000
"""The most keys whose states are read: a Redis, which does nothing else meanwhile, takes 35 us for each."""
SECONDS: Final = 4.0
"""The time after which a look ends with what it has found. Prometheus waits ten seconds for a scrape."""
_FOR_STATES: Final = 0.25
"""The part of this time that is added for states if names have taken it all."""
_OLDEST: Final = 10
"""The keys of a large group, those whose first in line has waited longest, that are a group of their own."""


@dataclass(slots=True)
class Group:
    """Keys that are alike: of one name and kind, all with a line or all without, all due or none.

    Damaged keys, and the longest waits of a large group, are groups of their own. `states`: of all its keys,
    or of some that were chosen at random.
    """

    name: str
    keys: list[str] = field(default_factory=list)
    states: dict[str, Snapshot] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The number of keys that each of the states stands for."""
        return len(self.keys) / len(self.states) if self.states else 0


@dataclass(frozen=True, slots=True)
class Look:
    """The lines, with exact counts, and all keys in groups, if the time has sufficed to read all names."""

    lines: Mapping[str, KeyInLine]
    groups: Collection[Group]
    has_all_names: bool

    @property
    def states(self) -> Iterator[tuple[str, Snapshot]]:
        return (pair for group in self.groups for pair in group.states.items())

    @property
    def keys(self) -> int:
        return sum(len(group.keys) for group in self.groups)

    @property
    def ratio(self) -> float:
        """The part of the keys whose states were read; 0: there was no time for all names and groups."""
        read = sum(len(group.states) for group in self.groups)
        is_whole = self.has_all_names and all(group.states for group in self.groups)
        return (read / self.keys if self.keys else 1.0) if is_whole else 0.0


def look(store: Store, name_of: Callable[[str], str] = lambda _: "", seconds: float = SECONDS) -> Look:
    """Look for some seconds: first at lines and names, then at states. `name_of` groups keys by a name."""
    until = time.monotonic() + seconds
    lines, names, has_all_names = dict[str, KeyInLine](), dict[str, None](), False
    try:
        with deadline(seconds / 2):
            for line in store.lines():
                lines[line.key] = line
            for key in store.scan():
                names[key] = None
                if time.monotonic() > until:
                    break
            else:
                has_all_names = True
    except StoreUnavailable:
        if not (lines or names):
            raise
    groups = dict[tuple[object, ...], Group]()
    for key in {**names, **lines}:
        name, in_line = name_of(key), lines.get(key)
        kind = name, key[:2], in_line and (in_line.is_due, in_line.is_damaged)
        groups.setdefault(kind, Group(name)).keys.append(key)
    every = [part for group in groups.values() for part in _split(group, lines, MOST // (2 * len(groups)))]
    until = max(until, time.monotonic() + seconds * _FOR_STATES)
    with deadline(until - time.monotonic()), suppress(StoreUnavailable):
        _read_states(store, _choose(every), until)
    return Look(lines, every, has_all_names)


def _split(group: Group, lines: Mapping[str, KeyInLine], share: int) -> list[Group]:
    """Set the keys apart whose first in line has waited longest: a sample would miss the one that hangs."""
    if len(group.keys) <= share or group.keys[0] not in lines:
        return [group]
    oldest = nlargest(min(_OLDEST, share), group.keys, key=lambda key: lines[key].age)
    apart = set(oldest)
    return [Group(group.name, oldest), Group(group.name, [key for key in group.keys if key not in apart])]


def _choose(groups: Collection[Group]) -> list[tuple[str, Group]]:
    """Choose keys at random: all of small groups, and of the others equally many."""
    left, chosen = MOST, list[tuple[str, Group]]()
    for place, group in enumerate(sorted(groups, key=lambda it: len(it.keys))):
        share = min(max(left // (len(groups) - place), 1), len(group.keys))
        chosen += [(key, group) for key in random.sample(group.keys, share)]
        left -= share
    random.shuffle(chosen)  # in time or not, each group gets its part
    return chosen


def _read_states(store: Store, chosen: list[tuple[str, Group]], until: float) -> None:
    for first in range(0, len(chosen), KEYS_AT_ONCE):
        if time.monotonic() > until:
            break
        batch = chosen[first : first + KEYS_AT_ONCE]
        found = store.inspect_all([key for key, _ in batch])
        for (key, group), snapshot in zip(batch, found, strict=True):
            group.states[key] = snapshot
