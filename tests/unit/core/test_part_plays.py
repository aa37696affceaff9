"""Parts with terms of their own, played on the real step and judged by facts that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_exclusive.core import parts, step
from celery_exclusive.core.key_state import KeyState
from celery_exclusive.core.operations import Granted, Hold, Parked, SetLimit
from celery_exclusive.core.parts import Parts
from celery_exclusive.core.records import NEVER, SECOND, Part
from celery_exclusive.core.room import NO_LIMIT
from tests.unit.core.test_fair_plays import Play
from tests.unit.stepping import Key

PLAYS = 150


class Limited(Play):
    """Tasks of parts that have limits and rates, which operators change, and of queues without a worker."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance
        limits, rates = (
            chance.choice([[1], [1, 2, 3], [2, NO_LIMIT], [NO_LIMIT]]),
            [(), (), ((3, SECOND // 2),)],
        )
        if seed % 3 == 0:
            rates = [((2, SECOND // 4),), ((3, SECOND // 2), (20, 5 * SECOND))]
        self.limits = {part: chance.choice(limits) if part else NO_LIMIT for part in self.weights}
        self.rates = {part: chance.choice(rates) if part else () for part in self.weights}
        self.starts = {part: list[tuple[int, int]]() for part in self.weights}
        self.closed, self.most = dict[str, int](), dict[str, tuple[int, int]]()
        self.mute = set[int]()
        if chance.random() < 0.2:
            self.mute = {task for task in range(len(self.parts)) if chance.random() < 0.1}
        self.has_order = not self.mute
        self.gives_up = [None for _ in self.parts]

    def run(self) -> list[str]:
        for _ in range(self.chance.choice([0, 0, 6])):
            self.plan(self.key.now + self.chance.randrange(2 * SECOND), "operator")
        self.plan(self.key.now + 100_000 * SECOND, "workers")
        return super().run()

    def _terms(self, part: str) -> dict[str, Any]:
        return {"part_limit": self.limits[part], "part_rates": self.rates[part]}

    def _wake(self, tasks: list[int]) -> None:
        super()._wake([task for task in tasks if task not in self.mute])

    def _workers(self, _: None) -> None:
        """Start workers for the queues that had none: until now they have held up no other task."""
        left = set(range(len(self.parts))) - self.ended - self.mute
        if left:
            self.faults.append(f"{left} wait for queues without a worker")
        mute, self.mute = self.mute - self.ended, set()
        for task in mute:
            self.plan(self.key.now, "copy", task)

    def _operator(self, _: None) -> None:
        part, lasts, chance = (
            self.chance.choice([*self.weights]),
            self.chance.randrange(1, SECOND),
            self.chance,
        )
        if not part:
            return
        if chance.random() < 0.3:
            self._do(Hold("", "", lasts, part))
            self.closed[part] = max(self.closed.get(part, 0), self.key.now + lasts)
        else:
            limit = chance.choice([0, 0, 1, 2, None])
            self._do(SetLimit(limit, lasts, part=part))
            self.most[part] = (NO_LIMIT, 0) if limit is None else (limit, self.key.now + lasts)

    def _limit(self, part: str) -> int:
        limit, until = self.most.get(part, (0, 0))
        return limit if until > self.key.now else self.limits[part]

    def _judge_start(self, task: int) -> None:
        part, now, limit = self.parts[task], self.key.now, self._limit(self.parts[task])
        if task in self.locks and not self._has_task(part):
            return
        beside = [it for it in self.running if self.parts[it] == part]
        units = sum(min(self.costs[it], max(limit, 1)) for it in (*beside, task))
        if units > limit and (beside or not limit):
            self.faults.append(f"{task} of {part} started beside {beside}: {units} of {limit}")
        if now < self.closed.get(part, 0):
            self.faults.append(f"{task} of {part} started while that was held")
        self.starts[part].append((now, self.costs[task]))
        for most, period in self.rates[part]:
            within = sum(min(cost, most) for at, cost in self.starts[part] if at > now - period)
            if within > most:
                self.faults.append(f"{within} of {part} started where {most} may")

    def _has_task(self, part: str) -> bool:
        """Whether a task of a part runs or waits, so that the key knows the terms of that."""
        waits = any(entry.part == part for entry in self.key.entries.values())
        return waits or any(self.parts[it] == part for it in self.running.keys() - self.locks)

    def _judge_now(self) -> None:
        super()._judge_now()
        entries, now = self.key.entries.values(), self.key.now
        for name in self.weights.keys() - {""}:
            part = self.key.known_parts.get(name, Part(name))
            own = [entry for entry in entries if entry.part == name]
            shut = sorted((entry.seq, entry.cost) for entry in own if entry.state == "shut")
            in_line = sum(entry.cost for entry in own if entry.state == "waiting")
            held = sum(lease.cost for lease in self.key.document.holders if lease.part == name)
            if (part.waiting, part.held, part.shut) != (in_line, held, len(shut)):
                self.faults.append(f"{part} counts other than {in_line, held, len(shut)}")
            limit = self._limit(name)
            is_open = now >= self.closed.get(name, 0) and limit and not self.rates[name]
            fits = shut and held + in_line + min(shut[0][1], limit) <= limit
            if is_open and fits and (self.key.last.due is None or self.key.last.due > now):
                self.faults.append(f"{name} has room for {shut[0]} and is not opened")

    def _judge_shares(self) -> None:
        """Parts with terms have no shares of a key that they cannot use. Nothing of them is left."""
        terms = self.key.document.terms
        if not self.faults and (self.key.known_parts or terms.shut or terms.part_due != NEVER):
            self.faults.append(f"left: {self.key.known_parts} {terms}")

    def _judge_order(self) -> None:
        if self.has_order and not (self.died or self.most or self.closed or self.loses):
            super()._judge_order()


@pytest.mark.promise(
    "Never more units of a part run than its limit, nor of the key than its own; a part that is full makes "
    "no other part wait, and what it allows in a time holds for each span of that time",
    figure="150 plays with up to 60 tasks, and each of ten planted faults is found",
    broke="the ten of `FAULTS`",
)
@pytest.mark.parametrize("seed", range(PLAYS))
def test_a_play_keeps_the_terms_of_each_part_and_leaves_no_task(seed: int) -> None:
    assert not Limited(seed).run()


@pytest.mark.promise("A limit that is set on a part with many tasks in line lets the first of them start")
def test_a_limit_for_a_part_with_a_long_line_starts_its_first_task() -> None:
    key = Key(2)
    for n in range(2):
        key.acquire(f"beta {n}", part="beta")
    for n in range(9):
        key.acquire(f"acme {n}", part="acme")
    key.ask(SetLimit(1, part="acme"))
    for n in range(2):
        key.release(f"beta {n}")
        assert key.last.wake == (f"acme {n}",)
    assert isinstance(key.promoted("acme 0", part="acme"), Granted)
    assert isinstance(key.promoted("acme 1", part="acme"), Parked)
    assert key.entries["acme 1"].state == "shut"


FITS, OF, TOUCHED, BROUGHT = Parts.fits, Parts.of, parts.touched, Parts.brought


def _without(field: str) -> Callable[..., Part]:
    """A part that is asked for its room without one of its counts."""
    room = Part.room

    def counts_less(self: Part, now: int, own: int = 0) -> Any:
        own = 0 if field == "waiting" else own
        return room(step.replace(self, **{field: 0}), now, own)

    return counts_less


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "the part is not asked": (Parts, "fits", lambda *_: True),
    "nothing opens a part": (KeyState, "_open_parts", lambda _: None),
    "runs are not counted": (Part, "room", _without("held")),
    "the line is not counted": (Part, "room", _without("waiting")),
    "a newcomer passes its part": (KeyState, "part_lets", lambda it, part, cost: it.parts.fits(part, cost)),
    "a lock brings terms": (Parts, "brought", lambda it, op: BROUGHT(it, replace(op, weight=op.weight or 1))),
    "starts are not counted": (step._Step, "_count_start", lambda *_: None),
    "parts are never due": (Parts, "_due", lambda *_: NEVER),
    "a hold of a part is forgotten": (step._Step, "_set_terms", lambda *_: None),
    "the parts of dead runs are not read": (
        parts,
        "touched",
        lambda document, line, ids, part, now: TOUCHED(document, line, ids, part, 0),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any(Limited(seed).run() for seed in range(PLAYS))
