"""The parts of a key's tasks, played on the real step and judged by facts that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from celery_exclusive.core import step
from celery_exclusive.core.key_state import KeyState
from celery_exclusive.core.operations import Acquire, Applied, Drop, Enqueue, Granted, Over, Release
from celery_exclusive.core.records import SECOND, Line, Part, reach
from tests.unit.core.plays import Timed
from tests.unit.stepping import TTL, Key

PLAYS = 60


class ShortKey(Key):
    """A key whose steps read no more of the line than they have to."""

    def look(self, operation: Any, now: int | None = None, count: int | None = None) -> step.Transition:
        ids = (operation.id,) if operation.id else ()
        return super().look(operation, now, reach(self.document, self.document.limit, ids, self.now))


class Play(Timed):
    """Tasks of several parts that join the line of one key, are called, start, end, die, and leave the line.

    A task is *called* when it is offered its first slot, or starts without an offer. Some are no tasks, but
    a `lock()`, which waits in no line: it asks again, and brings no terms of its part.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.limit = chance.randrange(1, 6)
        super().__init__(chance.choice([Key, ShortKey])(self.limit))
        parts = "abcd"[: chance.randrange(2, 5)] if chance.random() < 0.8 else ["", "a", "b"]
        self.weights = {part: chance.choice([1, 1, 2, 3, 4, 5]) if part else 1 for part in parts}
        tasks, dear, even = range(chance.randrange(10, 60)), chance.random() < 0.3, chance.random() < 0.5
        self.parts = [chance.choice(parts if even or chance.random() < 0.5 else parts[:1]) for _ in tasks]
        self.costs = [chance.choice([1, 1, 1, 2, 5]) if dear else 1 for _ in tasks]
        self.gives_up = [SECOND // 2 if chance.random() < 0.02 else None for _ in tasks]
        self.sends, self.loses, self.dies = (chance.choice([0, 0, it]) for it in (0.5, 0.1, 0.1))
        self.tokens, self.running, self.dead = count(), dict[int, str](), set[int]()
        self.called, self.joined = dict[int, int](), dict[int, tuple[int, list[int]]]()
        self.died = set[str]()
        self.pauses = dict[int, int]()
        locks = chance.choice([0, 0, 0.1])
        self.locks = {task for task in tasks if chance.random() < locks}
        self.key.reap()

    def run(self) -> list[str]:
        at, spread = self.key.now, self.chance.choice([0, 0.003, 0.02, 0.1])
        for task in range(len(self.parts)):
            at += int(self.chance.expovariate(1) * spread * SECOND)
            self.plan(at, "call", task)
        for _ in range(self.chance.choice([0, 0, 5])):
            self.plan(self.chance.randrange(self.key.now, at + SECOND // 2), "drop")
        self.play(len(self.parts))
        self._judge_order()
        self._judge_shares()
        return self.faults

    def _do(self, operation: Any, task: int = -1) -> Any:
        """Ask, and note who is called, and then whether the operation's task has joined the line."""
        answer = self.key.ask(operation)
        woken = [int(id) for id in self.key.last.wake]
        self._wake([it for it in woken if it != task])
        is_new = task not in self.joined and task not in self.called
        if is_new and str(task) in self.key.entries and not isinstance(answer, Granted):
            self._join(task)
        is_sent = isinstance(operation, Enqueue) and answer == Applied(True)
        self._wake([task] if task in woken or is_sent else [])
        for dead in [it for it in self.dead if str(it) not in self.key.holders]:
            self.dead.remove(dead)
            del self.running[dead]
        return answer

    def _join(self, task: int) -> None:
        earlier = [it for it in self.joined if self.parts[it] == self.parts[task] and it not in self.called]
        self.joined[task] = len(self.called), earlier
        own, others = self.key.entries[str(task)], self.key.line("").head
        passed = [it.id for it in others if it.offer_until > self.key.now and own.turn < it.turn]
        if passed and own.state == "waiting":
            self.faults.append(f"{task} stands before {passed}, which are offered")

    def _wake(self, tasks: list[int]) -> None:
        for task in tasks:
            if not self.key.entries[str(task)].is_over:
                self.called.setdefault(task, len(self.called))
            if self.chance.random() >= self.loses:
                self.plan(self.key.now + self.chance.randrange(30_000), "copy", task)

    def _call(self, task: int, *, is_copy: bool = False) -> None:
        if task in self.ended or task in self.running:
            return
        id, token, part = str(task), f"t{next(self.tokens)}", self.parts[task]
        if task in self.locks:
            lock = Acquire(id, token, TTL, self.limit, cost=self.costs[task], part=part, weight=0)
            if isinstance(self._do(lock), Granted):
                self._begin(task, token)
            else:
                self.pauses[task] = 2 * self.pauses.get(task, SECOND // 8)
                self.plan(self.key.now + self.pauses[task], "call", task)
            return
        terms: dict[str, Any] = {"limit": self.limit, "message": b"m", "gives_up_in": self.gives_up[task]}
        terms |= {"cost": self.costs[task], "part": part, "weight": self.weights[part]}
        terms |= self._terms(part)
        if not is_copy and self.chance.random() < self.sends:
            self._do(Enqueue(id, **terms), task)
            return
        promoted = "today" if is_copy else None
        acquire = Acquire(id, token, TTL, recovers=bool(self.dies), promoted=promoted, **terms)
        answer = self._do(acquire, task)
        if isinstance(answer, Over):
            self.ended.add(task)
        if isinstance(answer, Granted):
            self._begin(task, token)
            self.called.setdefault(task, len(self.called))

    def _begin(self, task: int, token: str) -> None:
        self._judge_start(task)
        self.running[task] = token
        if (used := self._size(*self.running)) > self.limit:
            self.faults.append(f"{task} started beside {used} of {self.limit}")
        if task not in self.locks and self.chance.random() < self.dies:
            self.dead.add(task)
            self.died.add(self.parts[task])
        else:
            self.plan(self.key.now + int(self.chance.expovariate(1) * 0.03 * SECOND), "end", task)

    def _copy(self, task: int) -> None:
        self._call(task, is_copy=True)

    def _terms(self, _: str) -> dict[str, Any]:
        """What calls of a part say of its terms."""
        return {}

    def _judge_start(self, task: int) -> None:
        passed = [id for id in self.key.in_line if int(id) not in self.called]
        if task not in self.called and passed:
            self.faults.append(f"{task} has passed {passed}")

    def _end(self, task: int) -> None:
        self.ended.add(task)
        self._do(Release(str(task), self.running.pop(task)))

    def _drop(self, _: None) -> None:
        if in_line := self.key.in_line:
            id = self.chance.choice(in_line)
            self.ended.add(int(id))
            self._do(Drop(id, "operator"))

    def _judge_now(self) -> None:
        first, due, now = next(iter(self.key.line("").head), None), self.key.last.due, self.key.now
        if first is None and self.key.document.terms.reached:
            self.faults.append("the key remembers a place though nothing waits")
        if first is None or first.offer_until > now:
            return
        has_room = self._size(*self.running, int(first.id)) <= self.limit
        if has_room and (due is None or due > now):
            self.faults.append(f"{first.id} has room and is not called")

    def _judge_order(self) -> None:
        for part in self.weights:
            joined = [it for it in self.joined if self.parts[it] == part and it in self.called]
            if joined != sorted(joined, key=self.called.__getitem__):
                self.faults.append(f"{part} has joined as {joined}, and was called in another order")

    def _size(self, *tasks: int) -> int:
        """The units that these tasks count: one that is dearer than the limit takes all of it."""
        return sum(min(self.costs[task], self.limit) for task in tasks)

    def _judge_shares(self) -> None:
        """Until a task is called, each other part has no more than its share, besides one first task.

        Its share is for the task and for those of its part that were not called when it joined, also if they
        leave the line. Not judged are parts with a dead run, since this stands behind later ones, and keys at
        which tasks without a part may wait, since those that were there before any part go first.
        """
        for task, (since, earlier) in self.joined.items() if "" not in self.weights else ():
            part, until = self.parts[task], self.called.get(task, 0)
            own = self._size(*earlier, task)
            for other in self.weights.keys() - {part} if part not in self.died else ():
                between = [it for it in self.called if since <= self.called[it] < until]
                rest = [it for it in between if self.parts[it] == other][1:]
                if self._size(*rest) * self.weights[part] > own * self.weights[other]:
                    self.faults.append(f"{task} of {part}, after {earlier}, has waited for {rest} of {other}")


@pytest.mark.promise(
    "While tasks of several parts wait for a key, the parts start tasks in turn, in the ratio of their "
    "weights, and in each part in the order of arrival",
    figure="60 plays with up to 60 tasks, and each of nine planted faults is found",
    broke="the nine of `FAULTS`",
)
@pytest.mark.parametrize("seed", range(PLAYS))
def test_a_play_is_fair_to_each_part_and_leaves_no_task(seed: int) -> None:
    assert not Play(seed).run()


PLACE, NOTE, TRANSITION = KeyState.place_behind, KeyState.note_reached, step._Step.transition


def _remembers(self: step._Step, answer: Any) -> step.Transition:
    made = TRANSITION(self, answer)
    terms = replace(made.document.terms, reached=self.reached)
    return replace(made, document=replace(made.document, terms=terms))


def _from_zero(self: KeyState, last: int, *terms: int) -> int:
    return PLACE(self, last, *terms) - (0 if last else self.reached)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "parts have no places": ("place_behind", lambda *_: 0),
    "the last of a part is forgotten": ("place_behind", lambda it, _, *terms: PLACE(it, 0, *terms)),
    "weights do not count": ("place_behind", lambda it, last, cost, *_: PLACE(it, last, cost)),
    "costs do not count": ("place_behind", lambda it, last, _, *weight: PLACE(it, last, 1, *weight)),
    "a new part starts at zero": ("place_behind", _from_zero),
    "offers do not count": ("note_reached", lambda *_: None),
    "offers to calls do not count": ("note_reached", lambda it, to: to.is_published or NOTE(it, to)),
    "a key without a line remembers a place": ("transition", _remembers),
    "nobody looks again": ("due", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step._Step, *FAULTS[fault])
    assert any(Play(seed).run() for seed in range(PLAYS))


# Shares, at a limit of one.


def _join(key: Key, part: str, tasks: int = 1, weight: int = 1) -> None:
    for _ in range(tasks):
        key.acquire(f"{part}/{key.document.fence}", part=part, weight=weight)


def _next(key: Key) -> str:
    """Let the run end and the next task start, and tell its part."""
    (running,) = key.holders
    key.release(running)
    (woken,) = key.last.wake
    part = key.entries[woken].part
    key.promoted(woken, part=part)
    return part


def _starts(key: Key, count: int, **weights: int) -> str:
    """Let so many tasks start of parts of which each has ten in line at any time."""
    started = ""
    for part, weight in weights.items():
        _join(key, part, 10, weight)
    for _ in range(count):
        started += (part := _next(key))
        if part in weights:
            _join(key, part, 1, weights[part])
    return started


def test_a_part_of_weight_three_has_three_starts_for_each_one_of_another() -> None:
    key = Key()
    _join(key, "first")
    started = _starts(key, 40, a=3, b=1)
    for many in range(41):
        assert abs(started[:many].count("a") - many * 3 / 4) <= 1, started


@pytest.mark.parametrize("weight", [20, 60, 100])
def test_a_weight_holds_in_a_long_line(weight: int) -> None:
    key = Key()
    _join(key, "first")
    _join(key, "light", 3)
    _join(key, "heavy", 300, weight)
    started = [_next(key) for _ in range(303)]
    first, second, _ = (number for number, part in enumerate(started) if part == "light")
    assert second - first - 1 == pytest.approx(weight, rel=0.05)


@pytest.mark.promise(
    "A call of a part of weight 100 goes before all that wait of one of weight 1, and about one start in 101 "
    "is of these, however many of the heavy part wait",
    broke="places in the order of arrival; weights do not count",
)
def test_an_urgent_call_goes_first_and_the_others_do_not_starve() -> None:
    key = Key()
    _join(key, "first")
    _join(key, "bulk", 60)
    for _ in range(20):
        _next(key)
    _join(key, "urgent", 1, 100)
    assert _next(key) == "urgent"
    _join(key, "urgent", 110, 100)
    started = [_next(key) for _ in range(110)]
    (behind,) = (number for number, part in enumerate(started) if part == "bulk")
    assert behind + 1 == pytest.approx(100, abs=2)


@pytest.mark.promise("Of many runs that die together the others' parts wait for one at a time")
def test_runs_that_die_together_come_again_in_turn_with_others() -> None:
    key = Key(5)
    for number in range(5):
        key.acquire(f"x/{number}", part="x", at_once=True, recovers=True)
    _join(key, "y", 10)
    key.now += TTL
    key.reap()
    parts = [key.entries[id].part for id in key.in_line]
    assert "".join(parts) == "yy" + "xyy" * 4 + "x"


@pytest.mark.promise("A part that had nothing in line has neither more than its share for it later, nor less")
def test_an_idle_part_has_no_credit_and_no_debt() -> None:
    key = Key()
    _join(key, "first")
    assert _starts(key, 100, a=1) == "a" * 100
    _join(key, "b", 20)
    started = [_next(key) for _ in range(20)]
    assert all(started[:many].count("b") in (many // 2, (many + 1) // 2) for many in range(21))


@pytest.mark.promise("A task of a part with none in line waits for two others at most, however many wait")
def test_a_task_of_a_quiet_part_does_not_wait_for_five_thousand() -> None:
    key, noisy = Key(), Part("noisy")
    _join(key, "first")
    for number in range(5_000):
        # While no slot is free a step needs to read nothing of the line.
        line = Line(waiting=number, ahead=number, parts=(noisy,))
        ask = Acquire(f"noisy/{number}", "", TTL, message=b"m", part="noisy")
        made = step.step(key.document, line, ask, key.now)
        (entry,) = made.entries
        key.document, (noisy,) = made.document, made.parts
        key.entries[entry.id], key.messages[entry.id] = entry, b"m"
    key.known_parts["noisy"] = noisy
    for _ in range(3):
        _join(key, "quiet")
        assert "quiet" in [_next(key) for _ in range(3)]


@pytest.mark.promise(
    "The tasks that wait when a key gets parts start first, and calls without a part share one after that"
)
def test_tasks_in_line_before_there_were_parts_go_first() -> None:
    key = Key()
    _join(key, "", 6)
    _join(key, "a", 5)
    _join(key, "", 5)
    started = [_next(key) for _ in range(15)]
    assert started[:5] == [""] * 5
    assert all(started[:many].count("a") in ((many - 5) // 2, (many - 4) // 2) for many in range(5, 16))
