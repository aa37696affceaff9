"""The judge sees each kind of fault in a journal, and excuses what other facts of the journal excuse."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import pytest

from tests.soak.judge import judge
from tests.soak.record import SECOND, Event, Record

Events = list[Event]
KEY = {"task": "t", "key": "k"}


def event(what: str, at: float, **details: Any) -> Event:
    return {"what": what, "at": int(at * SECOND), "pid": 1, **details}


def app(kind: str, *, late: bool = True, **option: Any) -> Events:
    task = {"name": "t", "group": "t", "late": late, kind: option}
    return [
        event("round", 0, ttl=6, visibility=20, slots=2, stack="rabbitmq-redis", pools=["solo"], tasks=[task])
    ]


def lock(*, late: bool = True, **option: Any) -> Events:
    default = {"limit": 1, "order": "published", "on_conflict": "wait", "keep_on_retry": False}
    return app("exclusive", late=late, **{**default, **option})


def once(**option: Any) -> Events:
    return app("unique", on_conflict="skip", **option)


def call(
    number: int, since: float, state: str = "SUCCESS", after: tuple[int, ...] = (), **answer: Any
) -> Events:
    wish = {"part": "p", "form": "plain", "after": after, **KEY}
    return [
        event("calling", since, number=number, **wish),
        event("called", since + 0.1, numbers=[number], **{"outcome": "published", **answer}),
        event("result", 99, number=number, id=f"id{number}", state=state),
    ]


def run(number: int, since: float, until: float | None = None, how: str = "return", **details: Any) -> Events:
    """A body of the process 10; without an end it was killed."""
    name = f"{number} {since}"
    body = {"part": "p", "cost": 1, "attempt": 0, "main": 1, **KEY, **details}
    begin = {**event("begin", since, run=name, number=number, **body), "pid": 10}
    return [begin, event("end", until, run=name, how=how)] if until else [begin]


def fault(what: str, since: float, until: float, **details: Any) -> Events:
    return [event(what, until, since=int(since * SECOND), **details)]


TWO = call(1, 1) + call(2, 2)
BESIDE = run(1, 2, 9) + run(2, 4, 6)
BETWEEN = run(1, 2, 3, "retry") + run(2, 4, 5) + run(1, 6, 7, attempt=1)
KILLED = run(1, 2) + run(2, 4, 6)
DEAR = run(1, 2, 9, cost=2)
WINDOW = app("debounce", wait=1) + call(1, 1) + call(2, 3, outcome="updated")
SKIPPED = call(1, 1) + call(2, 19, outcome="skipped", existing_id="id1")
DEATH = fault("killed", 4.2, 4.5, pids=[1, 10], slots=2)
CASES: dict[str, tuple[str, Events, Events]] = {
    "two bodies of a key": ("overlap", lock() + BESIDE, lock(limit=2) + BESIDE),
    "one that has stood still": (
        "overlap",
        lock() + BESIDE + fault("stalled", 2.5, 3.5, pids=[1]),
        lock() + run(1, 2, 14) + run(2, 13, 15) + fault("stalled", 4, 12, pids=[1]),
    ),
    "more units than the limit": (
        "overlap",
        lock(limit=3, cost="cost") + DEAR + run(2, 4, 6, cost=2),
        lock(limit=3, cost="cost") + DEAR + run(2, 4, 6),
    ),
    "two of a part": (
        "overlap",
        lock(limit=2, per={"limit": 1}) + BESIDE,
        lock(limit=2, per="part") + BESIDE,
    ),
    "one that an operator releases": (
        "overlap",
        lock() + BESIDE + fault("forced", 8, 8.5, **KEY),
        lock() + BESIDE + fault("forced", 3, 3.5, **KEY),
    ),
    "one whose process is killed": (
        "overlap",
        lock() + KILLED + DEATH,
        lock() + KILLED + fault("killed", 3, 3.1, pids=[10], slots=1),
    ),
    "one between two attempts": ("overlap", lock(keep_on_retry=True) + BETWEEN, lock() + BETWEEN),
    "a duplicate beside its first": (
        "overlap",
        once(until="finished") + BESIDE,
        once(until="started") + BESIDE,
    ),
    "a call that never ran": (
        "lost",
        lock() + call(1, 1, "PENDING"),
        lock() + call(1, 1, "FAILURE") + call(2, 1, "PENDING", error="OperationalError"),
    ),
    "a call that only retried": (
        "lost",
        lock() + call(1, 1, "RETRY") + run(1, 3, 4, "retry"),
        lock() + call(1, 1, "RETRY") + [event("revoked", 3, numbers=[1])],
    ),
    "the next step of a chain": (
        "lost",
        lock() + call(1, 1) + call(2, 1, "PENDING", after=(1,)),
        lock() + call(1, 1, "FAILURE") + call(2, 1, "PENDING", after=(1,)),
    ),
    "more than a kill loses": (
        "lost",
        lock(late=False) + [it for number in range(3) for it in call(number, 1, "PENDING")] + DEATH,
        lock(late=False) + call(1, 1, "PENDING") + DEATH,
    ),
    "one that ran twice": (
        "twice",
        lock() + call(1, 1) + run(1, 3, 4) + run(1, 5, 6),
        lock() + call(1, 1) + run(1, 3, 4) + run(1, 5, 6) + DEATH,
    ),
    "an attempt that ran twice": (
        "twice",
        lock() + call(1, 1) + run(1, 3, 4, "retry") + run(1, 5, 6, attempt=1) + run(1, 7, 8, attempt=1),
        lock()
        + call(1, 1)
        + run(1, 2, 3, "retry")
        + run(1, 3, 4, "retry")
        + run(1, 5, 6, attempt=1)
        + run(1, 7, 8, attempt=1),
    ),
    "the step after one that was skipped": (
        "twice",
        lock() + call(1, 1) + call(2, 1, after=(1,)) + run(2, 3, 4) + run(2, 5, 6),
        lock()
        + call(1, 1)
        + call(2, 1, after=(1,))
        + run(2, 3, 4)
        + run(2, 5, 6)
        + fault("killed", 4.2, 4.5, pids=[20], slots=1),
    ),
    "a later call that began first": (
        "disorder",
        lock() + TWO + run(2, 4, 5) + run(1, 6, 7),
        lock(order="any") + TWO + run(2, 4, 5) + run(1, 6, 7),
    ),
    "more starts than the rate": (
        "rate",
        lock(limit=None, rate="1/4s") + run(1, 2, 3) + run(2, 4, 5),
        lock(limit=None, rate="1/4s") + run(1, 2, 3) + run(2, 6, 7),
    ),
    "the newest call": (
        "newest",
        lock(on_conflict="latest") + TWO + run(1, 3, 4),
        lock(on_conflict="latest") + TWO + run(2, 3, 4),
    ),
    "the newest call of a window": ("newest", WINDOW + run(1, 5, 6), WINDOW + run(2, 5, 6)),
    "a duplicate that was sent": (
        "let in",
        once(until="finished") + TWO + run(1, 3, 4) + run(2, 5, 6),
        once(until="finished") + TWO + run(1, 1.2, 1.5) + run(2, 5, 6),
    ),
    "a call within the period": ("let in", once(period=2) + TWO, once(period=0.9) + TWO),
    "one skipped for nothing": (
        "refused",
        once(until="finished") + SKIPPED + run(1, 3, 4),
        once(until="finished") + SKIPPED + run(1, 3, 21),
    ),
    "a key that is left": ("left", [*lock(), event("left", 99, busy=["x=t:k"])], lock()),
}


@pytest.mark.promise(
    "The judge of the soak sees each kind of fault in a journal: overlaps, lost calls, second runs, "
    "disorder, starts above a rate, a newest call that did not run, a duplicate that was sent, a call "
    "skipped for nothing, a key that is left",
    name="judge of the soak",
)
@pytest.mark.parametrize("case", CASES)
def test_the_judge_finds_what_is_planted_in_a_journal_and_nothing_without_it(case: str) -> None:
    kind, planted, clean = CASES[case]
    assert {finding.kind for finding in judge(planted)} == {kind}
    assert judge(clean) == []


@pytest.mark.proves("judge of the soak")
def test_the_judge_imports_the_standard_library_alone() -> None:
    for module in (judge, Record):
        tree = ast.parse(inspect.getsource(sys.modules[module.__module__]))
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {it.name for node in ast.walk(tree) if isinstance(node, ast.Import) for it in node.names}
        assert {
            f"{name}".partition(".")[0] for name in names - {"tests.soak.record"}
        } <= sys.stdlib_module_names
