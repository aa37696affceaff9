"""The controls of the sweep: what the verdict must see, and what it must excuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.crashes import lane as lanes
from tests.worker.crashes.case import Case
from tests.worker.crashes.lane import Call, Lane
from tests.worker.crashes.points import Point
from tests.worker.crashes.scenarios import SCENARIOS
from tests.worker.crashes.stack import Stack
from tests.worker.crashes.verdict import Verdict
from tests.worker.journal import Journal

VICTIM, SURVIVOR = 1, 2
"""The processes of a child of each."""
MAIN = {"role": "main", "number": 3, "moment": "before"}
pytestmark = pytest.mark.proves("crash points")


class Recorded:
    """What a lane knows of a case: the victim was killed before the third request of its main process."""

    def __init__(self, folder: Path, **end: Any) -> None:
        self.journal, self.record = Journal(folder / "journal"), Journal(folder / "record")
        self.calls, self.in_line, self.at_broker, self.popped, self.renewed = [], set(), set(), set(), set()
        self.servers = SimpleNamespace(are_one=True)
        self.end = {"how": "worker", "at": 0, "pid": 10, **MAIN, **end}

    killed_at = Lane.killed_at

    def is_gone(self, pid: int) -> bool:
        return pid == VICTIM

    def call(self, name: str, tag: str = "a") -> Call:
        self.calls.append(Call(name, "k", tag, tries=1, id=tag))
        return self.calls[-1]

    def run(self, tag: str, by: int, task: str = "alone", attempt: int = 0, *, ends: bool = True) -> None:
        about = {"id": tag, "publish": f"{attempt}", "promoted": None, "task": task, "attempt": attempt}
        for what in ("start", "end")[: 1 + ends]:
            self.journal.write(what, **about, key="k", tag=tag, pid=by)

    def acknowledge(self, tag: str) -> None:
        message = {"acknowledges": tag, "publish": "0", "promoted": None}
        self.record.write("request", label="ack", role="main", number=2, moment="after", **message)

    def ask(self) -> None:
        """Let the victim's child make a request now."""
        self.record.write("request", role="child 1", number=1, moment="after", label="EVALSHA", pid=VICTIM)

    def die(self) -> None:
        """Let the victim be killed now."""
        self.record.write("now")
        self.end["at"] = self.record.events("now")[-1]["at"]

    def faults(self, *, is_late: bool) -> list[str]:
        return list(Verdict(self, is_late).faults())  # type: ignore[arg-type]

    def excuses(self, call: Call, *, is_late: bool = False) -> bool:
        verdict = Verdict(self, is_late)  # type: ignore[arg-type]
        return not verdict.has_ended(call) and verdict.is_excused(call)


@pytest.fixture
def case(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("by", [VICTIM, SURVIVOR])
def test_a_repetition_in_one_worker_is_a_fault(case: Recorded, by: int, *, is_late: bool) -> None:
    for _ in range(2):
        case.run("a", by)
    assert case.faults(is_late=is_late) == ["a (attempt 0) ran 2 times"]


@pytest.mark.parametrize("where", ["", "at_broker"])
def test_a_window_may_run_twice_if_the_dead_worker_had_its_message(case: Recorded, where: str) -> None:
    if where:
        case.at_broker.add("a")
    for _ in range(2):
        case.run("a", SURVIVOR, "late")
    assert bool(case.faults(is_late=True)) is (not where)


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_task_that_a_dead_worker_had_not_acknowledged_may_run_again(
    case: Recorded, *, is_acknowledged: bool
) -> None:
    case.run("a", VICTIM)
    if is_acknowledged:
        case.acknowledge("a")
    case.die()
    case.run("a", SURVIVOR)
    assert bool(case.faults(is_late=True)) is is_acknowledged


@pytest.mark.parametrize("where", ["", "in_line", "at_broker"])
def test_early_acknowledgement_may_lose_what_is_neither_in_line_nor_at_the_broker(
    case: Recorded, where: str
) -> None:
    call = case.call("alone")
    if where:
        getattr(case, where).add("a")
    assert case.excuses(call) is (not where)
    assert not case.excuses(call, is_late=True)


@pytest.mark.parametrize("is_in_line", [True, False])
def test_a_message_between_redis_and_its_worker_may_be_lost(case: Recorded, *, is_in_line: bool) -> None:
    call = case.call("alone")
    case.popped.add("a")
    if is_in_line:
        case.in_line.add("a")
    assert case.excuses(call, is_late=True) is (not is_in_line)


def test_the_body_of_a_chord_is_not_lost_with_members_that_are_done(case: Recorded) -> None:
    call = case.call("chord")
    call.members = ["first", "second"]
    case.run("first", SURVIVOR)
    assert case.excuses(call)
    case.at_broker.add("second")
    assert not case.excuses(call)


@pytest.mark.parametrize(
    ("outcome", "is_published"), [("skipped", True), ("skipped", False), ("published", False)]
)
def test_a_dead_publisher_may_leave_a_key_without_its_message(
    tmp_path: Path, outcome: str, *, is_published: bool
) -> None:
    case = Recorded(tmp_path, role="publisher", how="child")
    case.servers.are_one = False
    call = case.call("once")
    call.outcome = outcome
    if is_published:
        case.record.write("request", role="publisher", moment="after", label="publish", pid=10)
    assert case.excuses(call) is (outcome == "skipped" and not is_published)


def test_tasks_in_another_order_are_a_fault(case: Recorded) -> None:
    for tag in "abc":
        case.call("ordered", tag)
    for tag in "acb":
        case.run(tag, SURVIVOR, "ordered")
    assert case.faults(is_late=True) == ["c began before b"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_task_may_begin_late_if_its_process_stood_still_before_its_body(
    case: Recorded, *, is_asked: bool
) -> None:
    case.end["how"] = "pause"
    case.die()
    for tag in "ab":
        case.call("ordered", tag)
    case.run("b", SURVIVOR, "ordered")
    if is_asked:
        case.ask()
    case.run("a", VICTIM, "ordered")
    assert case.faults(is_late=False) == (["b began before a"] if is_asked else [])


def test_a_duplicate_that_runs_is_a_fault(case: Recorded) -> None:
    for tag in ("a", "duplicate"):
        for attempt in (0, 1):
            case.run(tag, SURVIVOR, "once", attempt)
    assert case.faults(is_late=True) == ["a duplicate ran"]


def test_a_window_that_ran_with_older_arguments_is_not_over(case: Recorded) -> None:
    newest = case.call("late", "c")
    case.journal.write("end", id="c", publish="0", attempt=0, task="late", tag="b")
    assert not Verdict(case, is_late=True).has_ended(newest)  # type: ignore[arg-type]


def test_a_chord_gathers_each_member_once(case: Recorded) -> None:
    case.call("chord")
    case.journal.write("gathered", id="a", tag="a", tags=["first"])
    assert case.faults(is_late=True) == ["a chord gathered ['first']"]


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_chord_is_gathered_again_if_a_member_counts_again(case: Recorded, *, is_acknowledged: bool) -> None:
    case.call("chord").members = ["first"]
    case.run("first", VICTIM)
    if is_acknowledged:
        case.acknowledge("first")
    case.die()
    for _ in range(2):
        case.journal.write("gathered", id="a", tag="a", tags=["first", "second"], pid=SURVIVOR)
    assert bool(case.faults(is_late=True)) is is_acknowledged


@pytest.mark.parametrize("by", [VICTIM, SURVIVOR])
def test_bodies_at_one_time_are_a_fault_unless_the_first_had_died(case: Recorded, by: int) -> None:
    case.run("a", by, ends=False)
    case.die()
    case.run("b", SURVIVOR + 1)
    overlap = ["a and b were in their bodies at one time"]
    assert case.faults(is_late=True) == ([] if by == VICTIM else overlap)


@pytest.mark.parametrize("told", ["lost", "", "asked"])
def test_a_body_that_stood_still_is_told_or_was_granted_its_lease_before(case: Recorded, told: str) -> None:
    case.end["how"] = "pause"
    case.die()
    if told == "asked":
        case.ask()
    case.run("a", VICTIM, ends=False)
    case.run("a", SURVIVOR, attempt=1)
    if told == "lost":
        case.journal.write("lost", id="a")
    assert bool(case.faults(is_late=True)) is (told == "asked")


def test_a_renewed_lease_of_a_dead_worker_is_a_fault(case: Recorded) -> None:
    case.renewed.add("k")
    assert case.faults(is_late=True) == ["a lease of k outlives its dead worker"]


def test_the_sweep_sees_that_workers_lose_a_task(
    make_lane: Callable[[Stack], Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They acknowledge early, and the verdict does not know it."""
    lane = make_lane(Stack("redis", is_late=False))
    case = Case(lane, SCENARIOS["renewals"], is_late=True)
    case.count()
    monkeypatch.setattr(lanes, "DEADLINE", 15)
    with pytest.raises(AssertionError, match="the end of a: it was lost"):
        case.run(Point("heartbeat", 2, "after", "worker"))
