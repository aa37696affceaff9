"""Locks that people have written by hand do twice, drop or never lock what ours does once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat import LOCK_EXPIRE
from tests.compat.rehearsal import Rehearsal
from tests.worker.journal import eventually

Rehearse = Callable[..., Rehearsal]
pytestmark = pytest.mark.timeout(240)


def test_work_below_the_block_of_a_lock_runs_twice_at_once_and_ours_does_not(rehearse: Rehearse) -> None:
    rehearsal = rehearse("redis_lock")
    for task, bodies in {"outside_printed": 2, "outside_ours": 1}.items():
        rehearsal.begin(task, f"first {task}")
        rehearsal.send_and_settle(task, f"second {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"first {task}", f"second {task}")


def test_work_whose_lock_has_expired_is_done_again_and_ours_is_not(rehearse: Rehearse) -> None:
    rehearsal = rehearse("redis_lock")
    results = {task: rehearsal.begin(task, task) for task in ("caught_printed", "caught_ours")}
    rehearsal.outlive(LOCK_EXPIRE)
    for task, runs in {"caught_printed": 2, "caught_ours": 1}.items():
        rehearsal.lab.open(task)
        if runs == 2:
            rehearsal.lab.journal.wait_for("start", 2, tag=task)
            rehearsal.lab.open(task)
            rehearsal.lab.journal.wait_for("end", 2, tag=task)
        else:
            assert results[task].get(timeout=60) == task
        assert rehearsal.tags(task) == [task] * runs


def test_a_call_that_finds_the_lock_held_is_dropped_after_its_retries_and_ours_waits(
    rehearse: Rehearse,
) -> None:
    rehearsal = rehearse("redis_lock")
    for task, state in {"retried_printed": "FAILURE", "retried_ours": "SUCCESS"}.items():
        rehearsal.begin(task, f"first {task}")
        second = rehearsal.send(task, f"second {task}")
        if state == "FAILURE":
            eventually(second.ready, "the last retry")
        else:
            rehearsal.lab.wait_for_line(1, task, f"key of {task}")
        rehearsal.lab.open(f"first {task}", f"second {task}")
        second.get(timeout=60, propagate=False)
        assert second.state == state
        assert rehearsal.has_begun(task, f"second {task}") is (state == "SUCCESS")


def test_a_parking_lot_starts_more_than_its_limit_and_ours_does_not(rehearse: Rehearse) -> None:
    rehearsal = rehearse("parking_lot", slots=5)
    tags = [f"printed {number}" for number in range(7)]
    for tag in tags:
        rehearsal.lab.send("park", "tenant", tag).get(timeout=60)
    assert most_at_once(rehearsal, "printed", [1, 2, 4]) == 4
    for number in range(6):
        rehearsal.lab.send("ours", "tenant", f"ours {number}", hold=True)
    assert most_at_once(rehearsal, "ours", [2, 2, 2]) == 2


def most_at_once(rehearsal: Rehearsal, task: str, waves: list[int]) -> int:
    """Let as many bodies as have begun end at once, wave by wave; return how many were open together."""
    ended = 0
    for wave in waves:
        events = rehearsal.lab.journal.wait_for("start", ended + wave, task=rehearsal.task(task))
        rehearsal.lab.open(*(event["tag"] for event in events[ended:]))
        ended += wave
        rehearsal.lab.journal.wait_for("end", ended, task=rehearsal.task(task))
    return rehearsal.most_open(task)


def test_a_time_out_that_counts_for_one_run_lets_the_third_in_beside_the_second_and_ours_does_not(
    rehearse: Rehearse,
) -> None:
    rehearsal = rehearse("cron", pool="threads")
    for task in ("printed", "ours"):
        first = rehearsal.begin(task, f"first {task}")
        rehearsal.lab.open(f"first {task}")
        first.get(timeout=60)
        rehearsal.begin(task, f"second {task}")
    rehearsal.outlive(LOCK_EXPIRE)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        rehearsal.send_and_settle(task, f"third {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"second {task}", f"third {task}")


def test_a_base_that_is_set_too_late_locks_nothing_and_ours_locks(rehearse: Rehearse) -> None:
    rehearsal = rehearse("late_base")
    rehearsal.worker.wait_for_log("printed: once=")  # ours reports what the other has lost
    for task, bodies in {"printed": 2, "ours": 1}.items():
        first = rehearsal.begin(task, f"first {task}")
        second = rehearsal.send(task, f"second {task}")
        assert (second.id == first.id) is (bodies == 1)
        if bodies == 2:
            rehearsal.lab.journal.wait_for("start", tag=f"second {task}")
        assert rehearsal.most_open(task) == bodies, task
        rehearsal.lab.open(f"first {task}", f"second {task}")
