"""Locks that people have written by hand do twice, drop or never lock what ours does once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat import LOCK_EXPIRE
from tests.compat.recipe import Recipe
from tests.worker.journal import eventually

StartRecipe = Callable[..., Recipe]


@pytest.mark.promise(
    "Six locks that are written by hand fail where ours holds",
    name="locks written by hand",
    broke="the locks themselves; a limit of 2 had 4 at once",
)
def test_work_below_the_block_of_a_lock_runs_twice_at_once_and_ours_does_not(
    start_recipe: StartRecipe,
) -> None:
    recipe = start_recipe("redis_lock")
    for task, bodies in {"outside_printed": 2, "outside_ours": 1}.items():
        recipe.begin(task, f"first {task}")
        recipe.send_and_settle(task, f"second {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"first {task}", f"second {task}")


@pytest.mark.proves("locks written by hand")
def test_work_whose_lock_has_expired_is_done_again_and_ours_is_not(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("redis_lock")
    results = {task: recipe.begin(task, task) for task in ("caught_printed", "caught_ours")}
    recipe.outlive(LOCK_EXPIRE)
    for task, runs in {"caught_printed": 2, "caught_ours": 1}.items():
        recipe.lab.open(task)
        if runs == 2:
            recipe.lab.journal.wait_for("start", 2, tag=task)
            recipe.lab.open(task)
            recipe.lab.journal.wait_for("end", 2, tag=task)
        else:
            assert results[task].get(timeout=60) == task
        assert recipe.tags(task) == [task] * runs


@pytest.mark.proves("locks written by hand")
def test_a_call_that_finds_the_lock_held_is_dropped_after_its_retries_and_ours_waits(
    start_recipe: StartRecipe,
) -> None:
    # One slot for all retries: else Celery may store RETRY of one after FAILURE of the next.
    recipe = start_recipe("redis_lock", slots=2)
    for task, state in {"retried_printed": "FAILURE", "retried_ours": "SUCCESS"}.items():
        recipe.begin(task, f"first {task}")
        second = recipe.send(task, f"second {task}")
        if state == "FAILURE":
            eventually(second.ready, "the last retry")
        else:
            recipe.lab.wait_for_line(1, task, f"key of {task}")
        recipe.lab.open(f"first {task}", f"second {task}")
        second.get(timeout=60, propagate=False)
        assert second.state == state
        assert recipe.has_begun(task, f"second {task}") is (state == "SUCCESS")


@pytest.mark.proves("locks written by hand")
def test_a_parking_lot_starts_more_than_its_limit_and_ours_does_not(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("parking_lot", slots=5)
    tags = [f"printed {number}" for number in range(7)]
    for tag in tags:
        recipe.lab.send("park", "tenant", tag).get(timeout=60)
    assert most_at_once(recipe, "printed", [1, 2, 4]) == 4
    for number in range(6):
        recipe.lab.send("ours", "tenant", f"ours {number}", hold=True)
    assert most_at_once(recipe, "ours", [2, 2, 2]) == 2


def most_at_once(recipe: Recipe, task: str, waves: list[int]) -> int:
    """Let as many bodies as have begun end at once, wave by wave; return how many were open together."""
    ended = 0
    for wave in waves:
        events = recipe.lab.journal.wait_for("start", ended + wave, task=recipe.task(task))
        recipe.lab.open(*(event["tag"] for event in events[ended:]))
        ended += wave
        recipe.lab.journal.wait_for("end", ended, task=recipe.task(task))
    return recipe.most_open(task)


@pytest.mark.proves("locks written by hand")
def test_a_time_out_that_counts_for_one_run_lets_the_third_in_beside_the_second_and_ours_does_not(
    start_recipe: StartRecipe,
) -> None:
    recipe = start_recipe("cron", pool="threads")
    for task in ("printed", "ours"):
        first = recipe.begin(task, f"first {task}")
        recipe.lab.open(f"first {task}")
        first.get(timeout=60)
        if task == "ours":  # its lock is free some milliseconds after the result
            ours = recipe.lab.task(task)
            eventually(lambda ours=ours: not ours.lock_state("key of ours").is_running, "a free lock")
        recipe.begin(task, f"second {task}")
    recipe.outlive(LOCK_EXPIRE)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        recipe.send_and_settle(task, f"third {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"second {task}", f"third {task}")


@pytest.mark.proves("locks written by hand")
def test_a_base_that_is_set_too_late_locks_nothing_and_ours_locks(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("late_base")
    recipe.worker.wait_for_log("printed: once=")  # ours reports what the other has lost
    for task, bodies in {"printed": 2, "ours": 1}.items():
        first = recipe.begin(task, f"first {task}")
        second = recipe.send(task, f"second {task}")
        assert (second.id == first.id) is (bodies == 1)
        if bodies == 2:
            recipe.lab.journal.wait_for("start", tag=f"second {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"first {task}", f"second {task}")
