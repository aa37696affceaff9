"""The points of a case: at which request, and how, a process ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """Right before or right after a request of a role, written "main 3 before worker".

    `how`: "child" kills the process itself, which is the publisher or a child; "worker" the main process with
    its children; "pause" stops these, or the publisher, for longer than a lease lives. Without a role it is
    the point of no process.
    """

    role: str = ""
    number: int = 0
    moment: str = ""
    how: str = ""

    def __str__(self) -> str:
        return f"{self.role} {self.number} {self.moment} {self.how}"


def points_of(counts: Mapping[str, int]) -> list[Point]:
    """Return all points of a scenario in which each role makes so many requests."""
    return [
        Point(role, number, moment, how)
        for role, count in counts.items()
        for number in range(1, count + 1)
        for moment, how in _ends_of(role)
    ]


def _ends_of(role: str) -> Iterator[tuple[str, str]]:
    """Yield the ends at a request. A pause after a request is one before the next."""
    kind, _, _ = role.partition(" ")
    kills = {"publisher": ("child",), "child": ("child", "worker")}.get(kind, ("worker",))
    for how in kills:
        yield from (("before", how), ("after", how))
    yield "before", "pause"
