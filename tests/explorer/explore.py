"""Goes breadth-first through every world there is, and tells the shortest way to a broken promise."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface
from unittest import mock

from celery_exclusive.core import key_state as core
from tests.explorer.model import Model, Move, Protocol, Setting, Violation


class Worlds(Interface):
    """A model: what may happen, and what must hold. Its worlds are tuples that equal worlds share.

    A world tells whether it `is_done`, and if nothing leads to such a world any more, what is `unfinished`.
    """

    setting: Any

    def start(self) -> Any: ...
    def moves(self, world: Any) -> Iterator[Move]: ...
    def check(self, world: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of a search. `broken`: the promise that does not hold. `trace`: the shortest way there."""

    setting: Any
    states: int
    moves: int
    seconds: float
    broken: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.setting.name}: {self.states:,} states, {self.moves:,} moves, {self.seconds:.1f} s"]
        if self.broken:
            lines.append(f"  BROKEN: {self.broken}")
            lines += [f"  {number:3} {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join(lines)


def explore(setting: Setting, protocol: Protocol | None = None) -> Explored:
    """Explore a world until a promise is broken or nothing new is found.

    Each world is checked on its own (exclusion, not twice by our doing, fences). At the end, from each of
    them all tasks must be able to finish without any further fault: so nothing is lost, nothing is stuck.
    """
    offers = {"OFFERS_IN_LINE": setting.offers_in_line, "OFFERS_ASIDE": setting.offers_aside}
    with mock.patch.multiple(core, **offers):
        return search(Model(setting, protocol or Protocol()))


def search(model: Worlds) -> Explored:
    """Explore all worlds of a model."""
    return _Search(model).run()


class _Search:
    def __init__(self, model: Worlds) -> None:
        self.model = model
        start = model.start()
        self.parts: dict[object, object] = {}
        self.numbers: dict[Any, int] = {start: 0}
        self.worlds: list[Any] = [start]
        self.parents = array("L", [0])
        self.labels = [""]
        self.edges = array("L")
        self.ends = array("L")
        self.moves = 0

    def run(self) -> Explored:
        begin = time.perf_counter()
        gc.disable()  # worlds are kept, and have no circles: to look for some takes a fifth of the time
        try:
            broken, trace = self._broken()
        finally:
            gc.enable()
        seconds = time.perf_counter() - begin
        return Explored(self.model.setting, len(self.worlds), self.moves, seconds, broken, tuple(trace))

    def _broken(self) -> tuple[str, list[str]]:
        current = 0
        while current < len(self.worlds):
            world = self.worlds[current]
            try:
                self.model.check(world)
                for label, reached, is_progress in self.model.moves(world):
                    self.moves += 1
                    number = self._number(reached, current, label)
                    if is_progress:
                        self.edges.append(number)
            except Violation as violation:
                return str(violation), [*self._way_to(current), f"and one step on from {world}"]
            self.ends.append(len(self.edges))
            current += 1
        stuck = self._stuck()
        if stuck is None:
            return "", []
        world = self.worlds[stuck]
        return world.unfinished, [*self._way_to(stuck), str(world)]

    def _number(self, world: Any, parent: int, label: str) -> int:
        number = self.numbers.get(world)
        if number is None:
            number = len(self.worlds)
            kept = world._make(self.parts.setdefault(part, part) for part in world)
            self.numbers[kept] = number
            self.worlds.append(kept)
            self.parents.append(parent)
            self.labels.append(label)
        return number

    def _stuck(self) -> int | None:
        """The nearest world from which no way without a fault leads to the end of all tasks."""
        can_end = bytearray(world.is_done for world in self.worlds)
        changed = True
        while changed:
            changed = False
            for number in reversed(range(len(self.worlds))):
                if not can_end[number]:
                    begin = self.ends[number - 1] if number else 0
                    can_end[number] = any(can_end[to] for to in self.edges[begin : self.ends[number]])
                    changed = changed or bool(can_end[number])
        return can_end.index(0) if 0 in can_end else None

    def _way_to(self, number: int) -> list[str]:
        way = []
        while number:
            way.append(self.labels[number])
            number = self.parents[number]
        return way[::-1]
