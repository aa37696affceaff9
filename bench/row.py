"""A row of the table: what was measured, against what, and what we want."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

OURS = "celery-exclusive"
Unit = Literal["share", "times", "percent", "count"]
"""A share of the base's speed, times the base's cost, or a number of its own: the less the better."""


class Figure(NamedTuple):
    """The median of all rounds, and their extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: list[float]) -> Figure:
        return cls(median(rounds), min(rounds), max(rounds))


@dataclass
class Row:
    """`floor` and `ours` are names of `figures`; all others there, and in `missing`, are peers."""

    name: str
    what: str
    unit: Unit
    goal: float | None
    figures: dict[str, Figure]
    floor: str | None = None
    ours: str = OURS
    missing: dict[str, str] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def others(self) -> dict[str, Figure]:
        """The figures of the other packages, the best first."""
        names = [name for name in self.figures if name != self.floor and not name.startswith(OURS)]
        best = sorted(names, key=lambda name: self.figures[name].median, reverse=self.unit == "share")
        return {name: self.figures[name] for name in best}

    def shown(self, number: float) -> str:
        """Return a number of this row as the table of figures has it."""
        if self.unit == "percent":
            return f"{number:.0%}"
        return f"{number:.2f}" if self.unit in ("share", "times") and number < 100 else f"{number:,.0f}"

    def told(self, number: float) -> str:
        """Return a number of this row as people say it."""
        if self.unit == "share":
            return f"{number:.0%} of the speed"
        return f"{self.shown(number)} times as long" if self.unit == "times" else self.shown(number)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"figures": {name: list(figure) for name, figure in self.figures.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Row:
        return cls(
            **values | {"figures": {name: Figure(*three) for name, three in values["figures"].items()}}
        )


def shares(figures: dict[str, list[float]], base: str) -> dict[str, Figure]:
    """Return how fast each is of the base: the base's time over its own, in each round."""
    return {name: Figure.of(_divided(figures[base], own)) for name, own in figures.items() if name != base}


def times(figures: dict[str, list[float]], base: str) -> dict[str, Figure]:
    """Return how much each costs of what the base costs, in each round."""
    return {name: Figure.of(_divided(own, figures[base])) for name, own in figures.items() if name != base}


def _divided(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]
