"""The packages, when a run outlives its lock, a worker dies, a message comes another way; and ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat import LOCK_EXPIRE
from tests.compat.recipe import Recipe
from tests.worker.journal import eventually

StartRecipe = Callable[..., Recipe]


@pytest.mark.promise(
    "A body that outlives the timeout of celery-once stays alone with ours",
    broke="no lock at all; limit 2; the timeout as a period",
)
def test_a_timeout_of_celery_once_lets_a_second_body_in_and_ours_does_not(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("once")
    firsts = {task: recipe.begin(task, f"first {task}") for task in ("printed", "ours")}
    recipe.outlive(LOCK_EXPIRE)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        second = recipe.send(task, f"second {task}")
        if second.id != firsts[task].id:
            recipe.lab.journal.wait_for("start", tag=f"second {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"first {task}", f"second {task}")


@pytest.mark.promise(
    "The singleton of a killed worker may be published again when its lease has expired; with "
    "celery-singleton it never may",
    broke="the package itself",
)
@pytest.mark.parametrize(("task", "is_published"), [("printed", False), ("ours", True)])
def test_a_killed_worker_locks_a_singleton_for_ever_and_ours_until_its_lease_expires(
    start_recipe: StartRecipe, task: str, is_published: bool
) -> None:
    recipe = start_recipe("singleton", exclusive_ttl=2)
    lost = recipe.begin(task, "lost")
    recipe.worker.kill()
    recipe.lab.start_worker("w2")
    recipe.outlive(3)
    second = recipe.send(task, "second")
    assert (second.id != lost.id) is is_published
    recipe.lab.open("second")
    if is_published:
        assert second.get(timeout=60) == "second"


@pytest.mark.promise(
    "A message by name frees no key with ours, and does with celery-heimdall",
    broke="limit 2; a release by any caller",
)
def test_a_message_by_name_frees_a_key_of_celery_heimdall_and_not_ours(start_recipe: StartRecipe) -> None:
    recipe = start_recipe("heimdall", task_acks_late=True)
    for task, bodies in {"printed": 2, "ours": 1}.items():
        first = recipe.begin(task, f"first {task}")
        by_name = recipe.lab.app.send_task(recipe.task(task), (f"key of {task}", f"by name {task}"))
        recipe.worker.wait_for_log(by_name.id)  # while it is fetched, the broker counts it nowhere
        eventually(lambda: recipe.lab.messages_at_the_broker() == 1, "a message that is refused")
        third = recipe.send(task, f"third {task}")
        if third.id != first.id:
            recipe.lab.journal.wait_for("start", tag=f"third {task}")
        assert recipe.most_open(task) == bodies, task
        recipe.lab.open(f"first {task}", f"third {task}")
