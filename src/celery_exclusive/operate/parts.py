"""The parts of a key, such as its tenants, as an operator sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from celery_exclusive.core.records import NEVER
from celery_exclusive.display import printable
from celery_exclusive.operate.room import Closed, Room
from celery_exclusive.stores.base import whole_line

if TYPE_CHECKING:
    from celery_exclusive.core.records import Part
    from celery_exclusive.stores.base import Snapshot, Store

SHOWN: Final = 10
"""The most parts of a key that are shown."""
COUNTED: Final = 1_000
"""The most waiting tasks of a key that are counted to check its parts."""


@dataclass(frozen=True, slots=True)
class PartState:
    """A part of a key's tasks; its counts are units, of which most tasks cost one.

    `shut`: how many tasks wait for room of the part, and are not in line yet. `weight`: its starts for one of
    a part of weight 1.
    """

    name: str
    running: int = 0
    in_line: int = 0
    shut: int = 0
    weight: int = 1
    room: Room = field(default_factory=lambda: Room(None, is_known=False))

    @classmethod
    def of(cls, part: Part, now: int) -> PartState:
        is_known = bool(part.held or part.waiting or part.shut)
        room = Room.of_terms(part.limit, part.terms.at(now), now, is_known=is_known)
        return cls(part.name, part.held, part.waiting, part.shut, part.weight, room)

    @property
    def named(self) -> str:
        return f"part {printable(self.name)}" if self.name else "no part"

    @property
    def waiting(self) -> int:
        return self.in_line + self.shut

    @property
    def is_set(self) -> bool:
        return self.room.override is not None or self.room.opens_in is not None

    @property
    def closed_by(self) -> Closed | None:
        """The word for what lets no more of its tasks into the line."""
        if self.room.closed_by in ("paused", "hold"):
            return self.room.closed_by
        if self.running + self.in_line >= self.room.most:
            return "part"
        return "rate" if any(rate.units - rate.used <= self.in_line for rate in self.room.rates) else None

    @property
    def text(self) -> str:
        closed, of_line = self.closed_by, f", {self.in_line:,} in line" * bool(self.in_line)
        if closed in ("paused", "hold"):
            return f"{self.named} is {self.room.closed_text}"
        if closed == "part":
            by = f" ({self.room.override.text})" if self.room.override else ""
            return f"a slot of {self.named}: {self.running:,} of {self.room.most:,} run{of_line}{by}"
        if closed == "rate":
            return f"room of {self.named}: {'; '.join(rate.text for rate in self.room.rates)}{of_line}"
        return f"{self.named}, which has room"


def has_parts(seen: Snapshot) -> bool:
    """Whether a key is known to have parts: tasks of them wait, or a rate or an operator's limit counts.

    Of a key whose parts only run, a snapshot does not know it.
    """
    terms = seen.terms
    return bool(terms.reached or terms.shut or terms.part_due < NEVER)


def parts_of(store: Store, key: str, now: int) -> list[PartState]:
    """Return a key's parts: first those that an operator has set, then those with most waiting tasks."""
    if key[:1] != "x" or not store.capabilities.line:
        return []
    found = (PartState.of(part, now) for part in store.parts(key))
    return sorted(found, key=lambda part: (not part.is_set, -part.waiting, -part.running, part.name))


def miscounted(store: Store, key: str, seen: Snapshot) -> list[str]:
    """Return what the counters of a key's parts say, where its line or its holders say something else.

    None of a key with more than `COUNTED` waiting tasks, or whose parts change meanwhile.
    """
    if seen.all_waiting + seen.terms.shut > COUNTED:
        return []
    parts, tasks = store.parts(key), [place.waiting for place in whole_line(store, key)]
    held, again = store.inspect(key), store.parts(key)
    if sorted(parts, key=_name) != sorted(again, key=_name):
        return []
    found = []
    for part in filter(_name, parts):  # what waits since before the key had parts counts for none
        own = [task for task in tasks if task.part == part.name and not task.is_aside]
        shut = sum(task.is_shut for task in own)
        waiting = sum(task.cost for task in own if not task.is_shut)
        if (part.waiting, part.shut) != (waiting, shut):
            kept = f"{part.waiting:,} units in line and {part.shut:,} tasks that wait for room"
            found.append(f"part {printable(part.name)} counts {kept}, and there are {waiting:,} and {shut:,}")
    units = len(held.holders) + held.others + held.terms.extra
    if (of_parts := sum(part.held for part in parts)) > units:
        found.append(f"its parts count {of_parts:,} units that run, and all runs hold {units:,}")
    return found


def _name(part: Part) -> str:
    return part.name


def part_named(parts: Iterable[PartState], name: str) -> PartState:
    return next((part for part in parts if part.name == name), PartState(name))
