"""`celery -A proj locks release --queued TASK`: all keys of a task whose messages have not begun."""

from __future__ import annotations

from typing import Any

import pytest

from celery_exclusive import Exclusive, Unique
from celery_exclusive.core.operations import AcquireAlone
from celery_exclusive.core.records import SECOND, Phase
from celery_exclusive.leases.operator_release import release_queued
from celery_exclusive.options.key_text import absolute_key
from celery_exclusive.stores.base import Snapshot
from tests.cli.conftest import Desk

TASK = "desk.load"


def hold(desk: Desk, key: str, phase: Phase, id: str = "a/p") -> None:
    desk.store.apply(key, AcquireAlone(id, "token", 600 * SECOND, phase=phase))


@pytest.fixture
def keys(desk: Desk) -> dict[str, str]:
    """Three keys of the task that are queued, and others."""

    @desk.app.task(name=TASK, shared=False, unique=Unique("n"))
    def load(n: int) -> None: ...

    @desk.app.task(name=f"{TASK}_all", shared=False, unique=Unique("n"))
    def load_all(n: int) -> None: ...

    found = {str(n): desk.app.tasks[TASK].lock_state(n).key for n in range(4)}
    found |= {"other": load_all.lock_state(1).key, "text": absolute_key(TASK, "u")}
    for name, phase in (("0", "queued"), ("1", "again"), ("text", "queued"), ("other", "queued")):
        hold(desk, found[name], phase)  # type: ignore[arg-type]
    hold(desk, found["2"], "running")
    hold(desk, found["3"], "period")
    return found


def held(desk: Desk, keys: dict[str, str]) -> str:
    return " ".join(name for name, key in keys.items() if desk.store.inspect(key).holders)


@pytest.mark.promise(
    "`locks release --queued TASK` releases the unique keys of all calls of a task that have not begun, "
    "asks first, and leaves runs, periods and other tasks alone. A task that begins meanwhile keeps its "
    "key, also in `locks release` and `release_lock()` without force. After a purge its calls are "
    "published again. `clear_locks` of the bridge does the same",
    name="release queued keys",
    broke=(
        "released by force: the task that had begun lost its key; a prefix for the name: the other task's "
        "key was released; no such command before"
    ),
)
def test_the_queued_keys_of_a_task_are_released_and_no_others(desk: Desk, keys: dict[str, str]):
    done = desk.run("release", "--queued", "--yes", TASK)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "released 3 of 3")
    assert held(desk, keys) == "2 3 other"


@pytest.mark.proves("release queued keys")
def test_the_queued_keys_of_all_tasks_are_released(desk: Desk, keys: dict[str, str]):
    for words in (("--all",), ("--queued",), ("--queued", "--all", TASK), ()):
        assert "--queued --all" in desk.run("release", *words).stderr
    done = desk.run("release", "--queued", "--all", "--yes")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "released 4 of 4")
    assert held(desk, keys) == "2 3"
    refused = desk.run("release", "--queued", "--all")
    assert (refused.exit_code, "no unique key is queued" in refused.stderr) == (1, True)


@pytest.mark.proves("release queued keys")
def test_releasing_queued_keys_asks_for_confirmation(desk: Desk, keys: dict[str, str]):
    refused = desk.run("release", "--queued", TASK, answer="n\n")
    assert refused.exit_code == 1
    assert "3 keys" in refused.stdout
    assert "its call may be queued again" in refused.stdout
    assert held(desk, keys) == "0 1 2 3 other text"
    assert desk.run("release", "--queued", TASK, answer="y\n").exit_code == 0
    assert held(desk, keys) == "2 3 other"


@pytest.mark.proves("release queued keys")
def test_a_task_without_queued_keys_is_an_error(desk: Desk, keys: dict[str, str]):
    refused = desk.run("release", "--queued", "desk.laod")
    assert refused.exit_code == 1
    assert "no unique key of task 'desk.laod' is queued" in refused.stderr
    assert f"did you mean '{TASK}'?" in refused.stderr
    assert desk.run("release", "--queued", "--force", TASK).exit_code == 2
    assert held(desk, keys) == "0 1 2 3 other text"


@pytest.mark.promise(
    "`locks release --queued TASK` says so if the task has no `unique=`, and names no other task",
    broke="the hint that names a similar task, as before",
)
def test_a_task_without_unique_is_no_misspelling(desk: Desk, keys: dict[str, str]):
    @desk.app.task(name=f"{TASK}_one", shared=False, exclusive=Exclusive("n"))
    def load_one(n: int) -> None: ...

    refused = desk.run("release", "--queued", load_one.name)
    assert refused.exit_code == 1
    assert f"task '{TASK}_one' has no unique= option" in refused.stderr
    assert "did you mean" not in refused.stderr


@pytest.mark.proves("release queued keys")
def test_a_task_that_begins_meanwhile_keeps_its_key(
    desk: Desk, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    inspect: Any = desk.store.inspect

    def begin_after(key: str) -> Snapshot:
        seen: Snapshot = inspect(key)
        hold(desk, key, "running")
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(desk.store, "inspect", begin_after)
        assert release_queued(desk.app._celery_exclusive, [keys["0"]]) == 0  # type: ignore[attr-defined]
    assert desk.store.inspect(keys["0"]).holders[0].phase == "running"
