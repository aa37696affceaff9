"""The recipes as printed let two bodies in, or lose a chord; ours, in the same scene, do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import chord

from tests.compat import LOCK_EXPIRE
from tests.compat.recipe import Recipe
from tests.worker.journal import eventually

StartRecipe = Callable[..., Recipe]


@pytest.mark.promise(
    "A body that outlives the timeout of its old lock stays alone with ours: the cookbook, the class of "
    "2010, `UniqueCeleryTask`, celery-once",
    name="recipes, timeout",
    broke="no lock at all; limit 2; the timeout as a period",
)
@pytest.mark.parametrize("name", ["cookbook", "class_task", "unique_task"])
def test_a_lock_that_expires_lets_a_second_body_in_and_ours_is_renewed(
    start_recipe: StartRecipe, name: str
) -> None:
    recipe = start_recipe(name, slots=6)
    bodies = {"printed": 2, "ours": 1, "declared": 1}
    played = [task for task in bodies if recipe.task(task) in recipe.lab.app.tasks]
    for task in played:
        recipe.begin(task, f"first {task}")
    recipe.outlive(LOCK_EXPIRE)
    for task in played:
        recipe.send_and_settle(task, f"second {task}")
        assert recipe.most_open(task) == bodies[task], task
        recipe.lab.open(f"first {task}", f"second {task}")


@pytest.mark.promise(
    '"Not more than once a day" outlives the first run with ours, and not with the recipe',
    broke="the recipe itself",
)
@pytest.mark.parametrize("task", ["daily_printed", "daily_ours"])
def test_a_period_ends_with_its_first_run_and_ours_does_not(start_recipe: StartRecipe, task: str) -> None:
    recipe = start_recipe("cookbook")
    recipe.begin(task, "morning")
    recipe.end(task, "morning")
    recipe.lab.open("noon")
    recipe.send_and_settle(task, "noon")
    assert recipe.tags(task) == {"daily_printed": ["morning", "noon"], "daily_ours": ["morning"]}[task]


@pytest.mark.promise(
    "A call that finds the lock held frees nothing with ours: `CacheLock`, `SingleTask`, celery-heimdall; "
    "the recipe's race",
    name="recipes, held lock",
    broke="limit 2; a release by any caller",
)
@pytest.mark.parametrize("name", ["cache_lock", "single_task"])
def test_a_call_that_finds_the_lock_held_frees_it_and_ours_does_not(
    start_recipe: StartRecipe, name: str
) -> None:
    recipe = start_recipe(name, task_acks_late=True)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        recipe.begin(task, f"holder {task}")
        assert not recipe.send(task, f"loser {task}").get(timeout=60)
        eventually(lambda: recipe.lab.messages_at_the_broker() == 1, "the end of the loser")
        recipe.send_and_settle(task, f"third {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"holder {task}", f"third {task}")


@pytest.mark.proves("recipes, held lock")
def test_a_lock_that_looks_before_it_locks_lets_two_in(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("cache_lock")
    for tag in "ab":
        recipe.send("race_printed", tag)
    recipe.lab.journal.wait_for("looked", 2)
    recipe.lab.open("race", "race")
    recipe.lab.journal.wait_for("start", 2)
    assert recipe.most_open("race_printed") == 2
    recipe.lab.open("a", "b", "race", "race")


@pytest.mark.promise(
    "A chord with a skipped member ends with ours, and never with the recipe",
    broke="the recipe itself",
)
@pytest.mark.parametrize(("task", "ends"), [("patient", False), ("ours", True)])
def test_a_chord_with_a_call_that_was_ignored_never_ends_and_ours_does(
    start_recipe: StartRecipe, task: str, ends: bool
) -> None:
    recipe = start_recipe("unique_task", task_acks_late=True)
    lab = recipe.lab
    member = lab.task(task)
    result = chord([member.s("k", tag, True) for tag in "ab"], lab.task("total").s()).delay()
    lab.journal.wait_for("start", task=member.name)
    eventually(lambda: lab.messages_at_the_broker() == 1, "one member that has left")
    lab.open("a", "b")
    lab.journal.wait_for("end", task=member.name)
    eventually(lambda: not lab.messages_at_the_broker(), "all messages acknowledged")
    assert result.ready() is ends
    assert recipe.most_open(task) == 1


@pytest.mark.promise('"Is it being executed?" can be asked of a single task')
def test_whether_a_single_task_runs_can_be_asked(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("single_task")
    task = recipe.lab.task("ours")
    assert not task.is_being_executed()
    recipe.begin("ours", "a")
    assert task.is_being_executed()
    assert task.lock.locked()
    assert not task.lock.acquire()
    recipe.end("ours", "a")
    eventually(lambda: not task.is_being_executed(), "a free lock")
