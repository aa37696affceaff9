"""Rates, costs, pauses and holds, played on the real step and judged by facts that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from celery_exclusive.core import key_state, room
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Charge,
    Granted,
    Hold,
    Release,
    SetLimit,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import GRAINS, Rate, Terms
from tests.unit.core.plays import Timed
from tests.unit.stepping import Key

PLAYS = 60
LONG = 10_000 * SECOND


class Play(Timed):
    """Tasks that arrive, start, end and are woken at one key, while its limits change."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        super().__init__(Key(chance.choice([1, 2, 3, 5, 50])))
        self.limit = self.key.document.limit
        self.rates = tuple(
            (chance.choice([1, 2, 3, 7, 20]), period * SECOND)
            for period in chance.sample([1, 3, 10], chance.choice([0, 1, 1, 2]))
        )
        dear = chance.random() < 0.4
        self.costs = [chance.choice([1, 1, 2, 5, 30]) if dear else 1 for _ in range(chance.randrange(5, 50))]
        self.tokens, self.running = count(), dict[int, str]()
        self.starts, self.charges = list[tuple[int, int]](), 0
        self.override: int | None = None
        self.opens_at = 0

    def run(self) -> list[str]:
        at, spread = self.key.now, self.chance.choice([0, 0.01, 0.3])
        for task in range(len(self.costs)):
            at += int(self.chance.expovariate(1) * spread * SECOND)
            self.plan(at, "call", task)
        if self.chance.random() < 0.5:
            at = self.key.now
            for _ in range(self.chance.randrange(1, 6)):
                at += self.chance.randrange(5 * SECOND)
                self.plan(at, self.chance.choice(["limit", "pause", "hold", "charge"]))
            self.plan(at + 1, "reset")
        self.play(len(self.costs))
        if not self.charges:
            self._judge_rates()
        return self.faults

    def _do(self, operation: Any) -> Any:
        answer = self.key.ask(operation)
        for id in self.key.last.wake:
            self.plan(self.key.now + self.chance.randrange(30_000), "copy", int(id))
        return answer

    def _call(self, task: int, *, is_copy: bool = False) -> None:
        if task in self.ended or task in self.running:
            return
        token, promoted = f"t{next(self.tokens)}", "today" if is_copy else None
        acquire = Acquire(
            str(task),
            token,
            LONG,
            self.limit,
            promoted=promoted,
            message=b"m",
            cost=self.costs[task],
            rates=self.rates,
        )
        own = self.key.entries.get(str(task))
        others = [it for it in self.key.entries.values() if it.state == "waiting" and it.id != str(task)]
        older = [it for it in others if own is None or (own.state == "waiting" and it.seq < own.seq)]
        unoffered = [it.id for it in older if not it.offers]
        used = sum(self.costs[it] for it in self.running)
        if not isinstance(self._do(acquire), Granted):
            return
        most = self.limit if self.override is None else self.override
        if not most or self.key.now < self.opens_at:
            self.faults.append(f"{task} started while nothing may")
        if used + min(self.costs[task], most) > most:
            self.faults.append(f"{task} started beside {used} of {most}")
        if passed := [id for id in unoffered if self.key.entries[id].state == "waiting"]:
            self.faults.append(f"{task} has passed {passed}")
        self.starts.append((self.key.now, self.costs[task]))
        self.running[task] = token
        self.plan(self.key.now + int(self.chance.expovariate(1) * 0.3 * SECOND), "end", task)

    def _copy(self, task: int) -> None:
        self._call(task, is_copy=True)

    def _end(self, task: int) -> None:
        self._do(Release(str(task), self.running.pop(task)))
        self.ended.add(task)

    def _limit(self, _: None) -> None:
        self.override = self.chance.choice([1, 2, 4, 30])
        self._do(SetLimit(self.override))

    def _pause(self, _: None) -> None:
        self.override = 0
        self._do(SetLimit(0))

    def _reset(self, _: None) -> None:
        self.override = None
        self._do(SetLimit(None))

    def _hold(self, _: None) -> None:
        lasts = self.chance.randrange(1, 3 * SECOND)
        self.opens_at = max(self.opens_at, self.key.now + lasts)
        self._do(Hold("", "", lasts))

    def _charge(self, _: None) -> None:
        if self.running:
            task = self.chance.choice(sorted(self.running))
            self.charges += 1
            self._do(Charge(str(task), self.running[task], self.chance.randrange(1, 10)))

    def _judge_rates(self) -> None:
        for most, period in self.rates:
            for last, (until, _) in enumerate(self.starts):
                units = sum(min(cost, most) for at, cost in self.starts[: last + 1] if at > until - period)
                if units > most:
                    self.faults.append(f"{units} of {most} in {period}")


@pytest.mark.promise(
    "At no time do more units run than a limit, in no span of a rate's time start more units than it has, "
    "nothing starts while the key is paused or held back, nothing passes a dear task, and each task runs",
    figure="60 plays with up to 50 tasks, and each of nine planted faults is found",
    broke="the nine of `FAULTS`",
)
@pytest.mark.parametrize("seed", range(PLAYS))
def test_a_play_breaks_no_limit_and_leaves_no_task(seed: int) -> None:
    assert not Play(seed).run()


def _no_due_for_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_state.KeyState, "_opens_by_time", lambda *_: [])


def _starts_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Terms, "started", lambda self, *_: self)


def _a_hold_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Terms, "at", _changed(Terms.at, opens_at=0))


def _a_grain_ends_with_its_first_start(patch: pytest.MonkeyPatch) -> None:
    def at(self: Rate, now: int) -> Rate:
        return replace(self, log=tuple(grain for grain in self.log if grain[0] + self.period > now))

    patch.setattr(Rate, "at", at)


def _all_limits_are_one(patch: pytest.MonkeyPatch) -> None:
    def take(limits: room.Room, cost: int) -> room.Room:
        if not limits:
            return ()
        free, most = min(free for free, _ in limits), min(most for _, most in limits)
        return (
            tuple((it - min(cost, most), of) for it, of in limits) if most and free >= min(cost, most) else ()
        )

    patch.setattr(key_state, "take", take)


def _leases_have_no_cost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_state.KeyState, "extra", property(lambda _: 0))


def _a_call_ends_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Terms, "with_rates", _changed(Terms.with_rates, override=None))


def _a_dear_task_is_passed(patch: pytest.MonkeyPatch) -> None:
    def has_room(self: key_state.KeyState, cost: int, _: int) -> bool:
        return bool(room.take(self.room(), cost))

    patch.setattr(key_state.KeyState, "has_room", has_room)


def _a_changed_rate_forgets_its_starts(patch: pytest.MonkeyPatch) -> None:
    def with_rates(self: Terms, rates: room.Rates, _: int) -> Terms:
        return replace(self, rates=tuple(Rate(*rate) for rate in rates))

    patch.setattr(Terms, "with_rates", with_rates)


def _changed(method: Callable[..., Terms], **fields: Any) -> Callable[..., Terms]:
    return lambda *given: replace(method(*given), **fields)


FAULTS = [
    _no_due_for_time, _starts_do_not_count, _a_hold_is_ignored, _a_grain_ends_with_its_first_start,
    _all_limits_are_one, _leases_have_no_cost, _a_call_ends_a_pause, _a_dear_task_is_passed,
    _a_changed_rate_forgets_its_starts,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_planted_fault_is_found(fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(Play(seed).run() for seed in range(PLAYS))


def test_a_log_has_few_grains_whatever_starts() -> None:
    terms, now, chance = Terms().with_rates(((10_000, 60 * SECOND),), 0), 0, Random(3)
    for _ in range(3_000):
        now += chance.randrange(SECOND // 10)
        terms = terms.at(now).started(now, 1)
        assert len(terms.rates[0].log) <= GRAINS + 1


def test_a_rate_keeps_the_starts_of_its_period_wherever_a_call_names_it() -> None:
    many, few = ((5, SECOND), (10, 60 * SECOND)), ((10, 60 * SECOND),)
    terms = Terms()
    for number in range(10):
        terms = terms.with_rates(few if number % 2 else many, number).started(number, 1)
    (minute,) = terms.with_rates(few, 10).active
    assert minute.free == 0
    assert {rate.period: rate.free for rate in terms.with_rates(many, 10).active} == {
        SECOND: 0,
        60 * SECOND: 0,
    }


def test_a_lease_that_is_handed_to_a_retry_keeps_its_units() -> None:
    key = Key(4)
    for id in "ab":
        assert isinstance(key.ask(Acquire(id, "t", LONG, 4, cost=2)), Granted)
    key.ask(AcquireAlone("retry", "t", LONG, ("a", "t"), "again"))
    assert not isinstance(key.ask(Acquire("c", "t", LONG, 4)), Granted)
