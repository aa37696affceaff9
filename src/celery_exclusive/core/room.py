"""The room of a key: what each of its limits, at once and per period, still lets start, in units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

NEVER = 2**53 - 1
"""A time that does not come."""
GRAINS = 32
"""The parts of a period that a log of starts tells apart, so it has at most one grain more."""
KEPT = 365 * 86_400_000_000
"""How long an idle key keeps an override without an end."""

A_START = 64_000
"""How far a part's next task stands behind its last one in line: for each unit, at weight 1."""
LARGEST = 1_000
"""The most units that a task counts between parts. One of a larger limit counts in thousandths of that."""
NO_LIMIT = 1_000_000_000
"""The limit of a key without one."""
AT_ONCE = 64
"""The tasks of other parts that join behind the same place in the order in which they come."""
Room = tuple[tuple[int, int], ...]
"""Of each limit the units that are free, and all of them."""
Rates = tuple[tuple[int, int], ...]
"""Of each rate its units and its period."""


def size(room: Room, cost: int) -> int:
    """Return the units that a task counts between parts: of the largest limit, or thousandths of that."""
    most = max((most for _, most in room if most < NO_LIMIT), default=1)
    return max(min(cost, most) * LARGEST // most, 1) if most > LARGEST else min(cost, max(most, 1))


class Share(NamedTuple):
    """The share of a call in its key: its units of each limit, and the part of the tasks that it belongs to.

    Parts start in turn, in the ratio of their weights. Weight 0: its terms stay as others have said.
    """

    cost: int = 1
    part: str = ""
    weight: int = 1
    limit: int = NO_LIMIT
    rates: Rates = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The share as the operations of a task have it."""
        return {
            "cost": self.cost,
            "part": self.part,
            "weight": self.weight,
            "part_limit": self.limit,
            "part_rates": self.rates,
        }


ONE_UNIT = Share()


def take(room: Room, cost: int) -> Room:
    """Return what a task leaves of the room, () if it finds none. One dearer than a limit needs all of it."""
    left = tuple((free - min(cost, most), most) for free, most in room)
    return () if any(free < 0 or not most for free, most in left) else left


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `units` start in any span of `period`, as the log of the last starts shows.

    A grain of the log is (first, last, units): the starts within a `GRAINS`-th of the period. It counts until
    a period after its last start, so a unit counts a little longer than a period, and never shorter.

    Without `units` it is no rate any more, but the log of one, for a call that brings the rate again.
    """

    units: int
    period: int
    log: tuple[tuple[int, int, int], ...] = ()

    def at(self, now: int) -> Rate:
        """Return the rate without the starts that count no more. One in the future counts as one of now."""
        grains = ((min(first, now), min(last, now), units) for first, last, units in self.log)
        log = tuple(grain for grain in grains if grain[1] + self.period > now)
        return self if log == self.log else replace(self, log=log)

    @property
    def free(self) -> int:
        return self.units - sum(units for *_, units in self.log)

    @property
    def last(self) -> int:
        """The time at which the last start counts no more."""
        return self.log[-1][1] + self.period if self.log else 0

    def started(self, now: int, units: int) -> Rate:
        if self.log and now - self.log[-1][0] <= self.period // GRAINS:
            first, _, before = self.log[-1]
            return replace(self, log=(*self.log[:-1], (first, now, before + units)))
        return replace(self, log=(*self.log, (now, now, units)))

    def opens(self, now: int, units: int) -> int:
        """Return the earliest time at which so many units are free; `NEVER` if they are more than all."""
        free, at = self.free, now
        for _, last, started in self.log:
            if free >= units:
                break
            free, at = free + started, last + self.period
        return at if free >= units else NEVER


class Override(NamedTuple):
    """The limit that an operator has set in the place of the code's, until a time. 0: the key is paused."""

    limit: int
    until: int = NEVER
    since: int = 0
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a key besides its limit, as its calls and its operators have set it. Most keys have none.

    `opens_at`: nothing starts before this time. `extra`: the units that leases hold beyond one each. A step
    needs them of a key with more holders than it reads. `reached`: of a line with parts, the place that
    its offers have reached. `shut`: how many tasks wait for room of their parts. `part_due`: when a sweep
    must look at one of the parts; it may be early, never late. `done`: the id whose run has ended last, while
    others that join it wait in line, or hold the key since.
    """

    rates: tuple[Rate, ...] = ()
    override: Override | None = None
    opens_at: int = 0
    extra: int = 0
    reached: int = 0
    shut: int = 0
    part_due: int = NEVER
    done: str = ""

    def at(self, now: int) -> Terms:
        """Return what counts at this time."""
        if self is NO_TERMS:
            return self
        rates = tuple(rate for rate in (rate.at(now) for rate in self.rates) if rate.units or rate.log)
        override = self.override if self.override and self.override.until > now else None
        opens_at = self.opens_at if self.opens_at > now else 0
        return Terms(rates, override, opens_at, self.extra, self.reached, self.shut, self.part_due, self.done)

    def last(self, now: int) -> int:
        """Return the time from which on nothing of an idle key's terms counts; 0: nothing does.

        NEVER: a sweep has to look at its parts before.
        """
        if self.part_due < NEVER:
            return NEVER
        override = min(self.override.until, now + KEPT) if self.override else 0
        return max(override, self.opens_at, *(rate.last for rate in self.rates), 0)

    def unless_idle(self, now: int, *, is_used: bool) -> Terms:
        """Return the terms of a key, none of one that is not used if nothing counts."""
        return self if is_used or self.last(now) > now else NO_TERMS

    def with_rates(self, rates: Rates, now: int) -> Terms:
        """Return the terms with these rates. Each keeps the log of its period, or of the one at its place.

        A call with other rates, or without any, does not forget the starts of those before.
        """
        if not (rates or self.rates) or rates == tuple((rate.units, rate.period) for rate in self.rates):
            return self
        left, periods = {rate.period: rate for rate in self.rates}, {period for _, period in rates}
        wanted = list[Rate]()
        for place, (units, period) in enumerate(rates):
            at_place = self.rates[place].period if place < len(self.rates) else period
            before = left.pop(period if period in left or at_place in periods else at_place, None)
            wanted.append(Rate(units, period, before.log if before else ()))
        kept = (replace(rate, units=0) for rate in left.values())
        new = (rate.at(now) for rate in (*wanted, *kept))
        return replace(self, rates=tuple(rate for rate in new if rate.units or rate.log))

    def started(self, now: int, cost: int) -> Terms:
        rates = tuple(rate.started(now, min(cost, rate.units)) if rate.units else rate for rate in self.rates)
        return replace(self, rates=rates) if rates else self

    def charged(self, now: int, units: int) -> Terms:
        """Count units of a run that it did not know before: they may be more than a rate has."""
        return replace(
            self, rates=tuple(rate.started(now, units) if rate.units else rate for rate in self.rates)
        )

    @property
    def active(self) -> tuple[Rate, ...]:
        return tuple(rate for rate in self.rates if rate.units) if self.rates else ()

    @property
    def text(self) -> str:
        """The terms as stores keep them, a line for each."""
        lines = []
        for rate in self.rates:
            grains = (number for grain in rate.log for number in grain)
            lines.append(" ".join(map(str, ("rate", rate.units, rate.period, *grains))))
        if self.override:
            *times, by, reason = self.override
            lines.append(" ".join(map(str, ("limit", *times))) + f" {by}\t{reason}")
        numbers = {"opens": self.opens_at, "extra": self.extra, "reached": self.reached, "shut": self.shut}
        lines += [f"{name} {value}" for name, value in numbers.items() if value]
        if self.part_due < NEVER:
            lines.append(f"due {self.part_due}")
        if self.done:
            lines.append(f"done 0 {self.done}")
        return "\n".join(lines)

    @classmethod
    def of_text(cls, text: str) -> Terms:
        """Read the terms. Raises ValueError if another program has written them."""
        rates, override, done = [], None, ""
        numbers = {"opens": 0, "extra": 0, "reached": 0, "shut": 0, "due": NEVER}
        for line in text.split("\n") if text else ():
            name, _, rest = line.partition(" ")
            if name == "rate":
                units, period, *flat = map(int, rest.split(" "))
                rates.append(Rate(units, period, tuple(zip(*[iter(flat)] * 3, strict=True))))
            elif name == "limit":
                limit, until, since, by = rest.split(" ", 3)
                by, _, reason = by.partition("\t")
                override = Override(int(limit), int(until), int(since), by, reason)
            elif name == "done":
                done = rest.partition(" ")[2]
            elif name in numbers:
                numbers[name] = int(rest)
            else:
                raise ValueError(f"unknown terms: {line}")
        terms = cls(tuple(rates), override, *numbers.values())  # type: ignore[arg-type]
        return replace(terms, done=done) if done else terms


NO_TERMS = Terms()
