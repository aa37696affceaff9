"""The parts of a key, such as the tenants of a service: what each has in line, runs, and allows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from celery_exclusive.core.records import NAMED, NEVER, OFFERED_AT_ONCE, Document, Entry, Holder, Line, Part
from celery_exclusive.core.room import Rates, Terms, take


class _Of(Protocol):
    @property
    def part(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def part_limit(self) -> int: ...
    @property
    def part_rates(self) -> Rates: ...


class Parts:
    """The parts that a step may change; their counts follow from its `holders` and `entries`."""

    def __init__(
        self,
        document: Document,
        line: Line,
        holders: Mapping[str, Holder],
        entries: Mapping[str, Entry],
        now: int,
    ) -> None:
        self.known = {part.name: part.at(now) for part in line.parts}
        self._now = now
        self._holders, self._entries = holders, entries
        self._before = dict(holders), dict(entries)
        self._has_holders, self._has_line = document.held > 0, line.waiting > 0
        self._has_shut = document.terms.shut > 0

    def of(self, name: str) -> Part:
        part = self.known.get(name) or Part(name)
        held, waiting, shut = _counts(name, *self._before)
        held_now, waiting_now, shut_now = _counts(name, self._holders, self._entries)
        held = (part.held if self._has_holders else 0) - held + held_now
        waiting = (part.waiting if self._has_line else 0) - waiting + waiting_now
        places = [entry.place for entry in self._entries.values() if entry.part == name and entry.place]
        last = max(part.last if self._has_line else 0, *places, 0) if waiting > 0 else 0
        return replace(
            part,
            held=max(held, 0),
            waiting=max(waiting, 0),
            last=last,
            shut=max((part.shut if self._has_shut else 0) - shut + shut_now, 0),
        )

    def entered(self, name: str) -> Part:
        """Return a part that gets a task in line, and is known from now on."""
        self.known.setdefault(name, Part(name))
        return self.of(name)

    def brought(self, op: _Of) -> Part:
        """Return the part of an operation with the terms that this brings, if it brings any."""
        part = self.known.get(op.part) or Part(op.part)
        if not op.weight:
            return part
        terms = part.terms.with_rates(op.part_rates, self._now)
        return replace(part, weight=op.weight, limit=op.part_limit, terms=terms)

    def bring(self, op: _Of) -> None:
        """Set what the task of an operation says of its part."""
        if op.part:
            self.known[op.part] = self.brought(op)

    def set_terms(self, name: str, terms: Terms) -> None:
        self.known[name] = replace(self.known.get(name) or Part(name), terms=terms)

    def fits(self, name: str, cost: int, own: int = 0) -> bool:
        return not name or bool(take(self.of(name).room(self._now, own), cost))

    def shut(self, name: str) -> list[Entry]:
        """Return the first of the tasks that wait for room of a part."""
        found = (entry for entry in self._entries.values() if entry.part == name and entry.state == "shut")
        return sorted(found, key=lambda entry: (entry.seq, entry.id))

    def with_shut(self) -> list[str]:
        """Return the parts whose tasks wait for their room, first the one with the eldest task."""
        first = {name: self.shut(name)[:1] for name in self.known}
        return [
            name for name in sorted(first, key=lambda name: [it.seq for it in first[name]]) if first[name]
        ]

    def changed(self) -> tuple[Part, ...]:
        return tuple(replace(part, due=self._due(part), first=()) for part in map(self.of, self.known))

    def _due(self, part: Part) -> int:
        if part.is_idle(self._now):
            return NEVER
        if not part.shut:
            due = part.terms.last(self._now)
            due = due if due > self._now else NEVER
        elif not (first := self.shut(part.name)[:1]) or self.fits(part.name, first[0].cost):
            due = self._now
        else:
            due = part.opens(self._now, first[0].cost)
        # An early time may stay, but of an override: the part forgets it when it is due, and idle.
        return part.due if self._now < part.due < due and not part.terms.override else due


def _counts(name: str, holders: Mapping[str, Holder], entries: Mapping[str, Entry]) -> tuple[int, int, int]:
    """Return the units of a part that these leases hold, and its entries in line, and how many are shut."""
    held = sum(lease.cost for lease in holders.values() if lease.part == name) if name else 0
    own = [entry for entry in entries.values() if entry.part == name]
    shut = sum(entry.state == "shut" for entry in own)
    return held, sum(entry.cost for entry in own if entry.place), shut


def touched(
    document: Document, line: Line, ids: Collection[str], part: str | None, now: int
) -> dict[str, int]:
    """Return the parts whose counts a step may change, and the units that it may free of each."""
    ended = {lease.id: lease for lease in document.holders if lease.expiry <= now or lease.id in ids}
    held = {lease.id for lease in document.holders}
    entries = [*line.overdue, *line.last, *([line.entry] if line.entry else [])]
    entries += [entry for entry in line.head if entry.offers and entry.offer_until <= now]
    entries += [entry for entry in line.behind if entry.id in ended or entry.id not in held]
    costs = [(lease.part, lease.cost) for lease in ended.values()]
    costs += [(entry.part, entry.cost) for entry in {entry.id: entry for entry in entries}.values()]
    freed = {} if part is None else {part: 0}
    for name, cost in costs:
        freed[name] = freed.get(name, 0) + cost
    return freed if document.terms.reached or any(freed) else {}


class Source(Protocol):
    def parts(self, names: Collection[str]) -> Iterable[Part]: ...

    def due_parts(self, count: int) -> list[Part]:
        """Return so many of the parts that are due at a time, in order of (due, name)."""
        ...

    def shut(self, name: str, count: int) -> Iterable[Entry]:
        """Return so many of the tasks that wait for room of a part, in order of (seq, id)."""
        ...


def with_parts(
    document: Document,
    line: Line,
    source: Source,
    now: int,
    ids: Collection[str] = (),
    brings: Part | None = None,
    *,
    sweeps: bool = False,
    changes: bool = False,
) -> Line:
    """Return the line with the parts that a step reads.

    `ids`: of leases. `brings`: its task's part, with terms. `changes`: it may set what the part allows.
    """
    freed = touched(document, line, ids, brings.name if brings else None, now)
    found = {part.name: part for part in source.parts(freed)} if freed else {}
    parts_due = NEVER
    if document.terms.part_due < NEVER:
        by_due = source.due_parts(NAMED + len(found) + 1)
        found |= {part.name: part for part in by_due[:NAMED] if sweeps and part.due <= now}
        parts_due = next((part.due for part in by_due if part.name not in found), NEVER)
    parts = list[Part]()
    for part in found.values():
        most = [shut_to_read(part, freed.get(part.name, 0), now)]
        if brings and brings.name == part.name:
            rates = tuple((rate.units, rate.period) for rate in brings.terms.rates)
            brought = replace(part, limit=brings.limit, terms=part.terms.with_rates(rates, now))
            most.append(shut_to_read(brought, freed[part.name], now))
            most += [OFFERED_AT_ONCE + 1] if changes else []
        first = tuple(source.shut(part.name, max(most))) if part.shut else ()
        # Another program may have deleted some.
        parts.append(replace(part, first=first, shut=len(first) if len(first) < max(most) else part.shut))
    return replace(line, parts=tuple(parts), parts_due=parts_due)


def shut_to_read(part: Part, freed: int, now: int) -> int:
    """Return how many shut tasks of a part a step reads that may free so many of its units."""
    room = replace(part, terms=part.terms.at(now)).room(now)
    return max(min(min(free for free, _ in room) + freed, OFFERED_AT_ONCE), 0) + 1
