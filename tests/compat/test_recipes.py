"""The recipes as printed let two bodies in, or lose a chord; ours, in the same scene, do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import chord

from tests.compat import LOCK_EXPIRE
from tests.compat.rehearsal import Rehearsal
from tests.worker.journal import eventually

Rehearse = Callable[..., Rehearsal]
pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("name", ["cookbook", "class_task", "unique_task"])
def test_a_lock_that_expires_lets_a_second_body_in_and_ours_is_renewed(rehearse: Rehearse, name: str) -> None:
    rehearsal = rehearse(name, slots=6)
    bodies = {"printed": 2, "ours": 1, "declared": 1}
    played = [task for task in bodies if rehearsal.task(task) in rehearsal.lab.app.tasks]
    for task in played:
        rehearsal.begin(task, f"first {task}")
    rehearsal.outlive(LOCK_EXPIRE)
    for task in played:
        rehearsal.send_and_settle(task, f"second {task}")
        assert rehearsal.most_open(task) == bodies[task], task
        rehearsal.lab.open(f"first {task}", f"second {task}")


@pytest.mark.parametrize("task", ["daily_printed", "daily_ours"])
def test_a_period_ends_with_its_first_run_and_ours_does_not(rehearse: Rehearse, task: str) -> None:
    rehearsal = rehearse("cookbook")
    rehearsal.begin(task, "morning")
    rehearsal.end(task, "morning")
    rehearsal.lab.open("noon")
    rehearsal.send_and_settle(task, "noon")
    assert rehearsal.tags(task) == {"daily_printed": ["morning", "noon"], "daily_ours": ["morning"]}[task]


@pytest.mark.parametrize("name", ["cache_lock", "single_task"])
def test_a_call_that_finds_the_lock_held_frees_it_and_ours_does_not(rehearse: Rehearse, name: str) -> None:
    rehearsal = rehearse(name, task_acks_late=True)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        rehearsal.begin(task, f"holder {task}")
        assert not rehearsal.send(task, f"loser {task}").get(timeout=60)
        eventually(lambda: rehearsal.lab.messages_at_the_broker() == 1, "the end of the loser")
        rehearsal.send_and_settle(task, f"third {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"holder {task}", f"third {task}")


def test_a_lock_that_looks_before_it_locks_lets_two_in(rehearse: Rehearse) -> None:
    rehearsal = rehearse("cache_lock")
    for tag in "ab":
        rehearsal.send("race_printed", tag)
    rehearsal.lab.journal.wait_for("looked", 2)
    rehearsal.lab.open("race", "race")
    rehearsal.lab.journal.wait_for("start", 2)
    assert rehearsal.most_open("race_printed") == 2
    rehearsal.lab.open("a", "b", "race", "race")


@pytest.mark.parametrize(("task", "ends"), [("patient", False), ("ours", True)])
def test_a_chord_with_a_call_that_was_ignored_never_ends_and_ours_does(
    rehearse: Rehearse, task: str, ends: bool
) -> None:
    rehearsal = rehearse("unique_task", task_acks_late=True)
    lab = rehearsal.lab
    member = lab.task(task)
    result = chord([member.s("k", tag, True) for tag in "ab"], lab.task("total").s()).delay()
    lab.journal.wait_for("start", task=member.name)
    eventually(lambda: lab.messages_at_the_broker() == 1, "one member that has left")
    lab.open("a", "b")
    lab.journal.wait_for("end", task=member.name)
    eventually(lambda: not lab.messages_at_the_broker(), "all messages acknowledged")
    assert result.ready() is ends
    assert rehearsal.most_open(task) == 1


def test_whether_a_single_task_runs_can_be_asked(rehearse: Rehearse) -> None:
    rehearsal = rehearse("single_task")
    task = rehearsal.lab.task("ours")
    assert not task.is_being_executed()
    rehearsal.begin("ours", "a")
    assert task.is_being_executed()
    assert task.lock.locked()
    assert not task.lock.acquire()
    rehearsal.end("ours", "a")
    eventually(lambda: not task.is_being_executed(), "a free lock")
