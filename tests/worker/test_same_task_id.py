"""Calls under an id of the caller's own: one of them runs, and the others leave its state alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain

from celery_exclusive import DuplicateTask, Unique
from tests.worker.lab import Lab, eventually
from tests.worker.message import wait_for_lines
from tests.worker.stage import Stage, on_stages
from tests.worker.test_unique import ONCE

SHOP = "tests.worker.shop_same_id"
DEADLINE = 60
ID = "digest-7"


def call(lab: Lab, name: str, tag: str = "", *, hold: bool = False, **options: Any) -> Any:
    return lab.task(name).apply_async(("k", tag, hold), **{"task_id": ID, **options})


def assert_one_run(lab: Lab, result: Any) -> None:
    """It runs as if it were the only one: its state is its own, and then its result."""
    assert result.state == "STARTED"
    lab.open("first")
    assert result.get(timeout=DEADLINE) == "first"
    assert lab.journal.tags() == ["first"]


@pytest.mark.promise(
    "Calls with one task id are one run, with `unique=` and where conflicts are skipped or raise (skip, "
    "raise, give up, a full line, both options): the others are not sent, or end without a result, and the "
    "state of the running task stays its own",
    name="one task id",
    broke=(
        "red before: four calls were four runs. Explorer: a call, or a delivery, under the id of another "
        "task is its kin"
    ),
    also="the explorer",
)
@ONCE
def test_unique_calls_with_one_task_id_are_sent_once_while_it_is_queued_and_while_it_runs(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP, task_track_started=True)
    first = call(lab, "unique", "first", hold=True)
    skipped = [call(lab, "unique") for _ in range(3)]
    assert stage.messages_at_the_broker(lab) == 1
    stage.start_worker(lab)
    lab.journal.wait_for("start", tag="first")
    skipped.append(call(lab, "unique"))
    assert [first.outcome, *[one.outcome for one in skipped]] == ["published", *["skipped"] * 4]
    assert {(one.id, one.existing_id) for one in skipped} == {(ID, ID)}
    with pytest.raises(DuplicateTask, match=f"is held by {ID}"):
        call(lab, "unique", unique=Unique("key", on_conflict="raise"))
    eventually(lambda: first.state == "STARTED", "its begin")
    assert_one_run(lab, first)
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_unique_call_under_the_id_of_a_task_that_has_finished_runs_as_in_celery(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    for tag in "ab":
        call(lab, "unique", tag)
        lab.journal.wait_for("end", tag=tag)
        eventually(lambda: not lab.task("unique").lock_state("k").unique_holder, "a free key")
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("one task id")
@pytest.mark.parametrize("policy", ["skip", "raise", "give up", "give up in line", "full", "both"])
@on_stages("prefork", "threads", brokers=("redis",))
def test_calls_with_the_task_id_of_the_holder_end_without_a_run_and_without_a_result(
    stage: Stage, policy: str
) -> None:
    lab = stage.make_lab(SHOP, task_track_started=True)
    worker = stage.start_worker(lab, slots=3)
    first = call(lab, policy, "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    eventually(lambda: first.state == "STARTED", "its begin")
    if policy == "full":
        call(lab, policy, "waits", task_id="another")
        lab.wait_for_line(1, policy, "k")
    for number in range(3):
        call(lab, policy, f"{number}")
    wait_for_lines(f"[{ID}] skipped: ", 3, worker)
    eventually(lambda: stage.messages_at_the_broker(lab) == int(stage.late), "the end of the others")
    if policy == "full":
        lab.app.control.revoke("another")
    assert f"[{ID}] raised" not in worker.log
    if policy == "both":
        assert not lab.task(policy).lock_state("k", "2").unique_holder
    assert_one_run(lab, first)
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A step of a canvas with the task id of the holder ends, and stores nothing in the result of the "
    "running task (results on Redis, in a database)",
    name="canvas step with the holder's id",
    broke="the skip result is stored",
)
@pytest.mark.parametrize("results", ["redis", "database"])
def test_a_step_of_a_chain_with_the_task_id_of_the_holder_hands_on_a_result_that_is_not_stored(
    make_lab: Callable[..., Lab], redis_url: str, tmp_path: Any, results: str
) -> None:
    backend = redis_url if results == "redis" else f"db+sqlite:///{tmp_path}/results.db"
    lab = make_lab(module=SHOP, result_backend=backend, exclusive_store=redis_url, task_track_started=True)
    lab.start_worker("w1", 3)
    first = call(lab, "unique", "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    eventually(lambda: first.state == "STARTED", "its begin")
    step = lab.task("unique").s("k", "second").set(task_id=ID)
    steps = chain(step, lab.task("following").s()).apply_async()
    assert steps.get(timeout=DEADLINE) == {"skipped": {"key": first.key, "existing_id": ID}}
    assert_one_run(lab, first)


@pytest.mark.proves("canvas step with the holder's id")
@pytest.mark.parametrize("policy", ["skip", "raise"])
@ONCE
def test_a_step_of_a_chain_with_the_task_id_of_the_holder_waits_for_the_lock(
    stage: Stage, policy: str
) -> None:
    """Others wait for its result, and a skip result would be stored as that of the holder."""
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    call(lab, policy, "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    step = lab.task(policy).s("k", "second").set(task_id=ID)
    steps = chain(step, lab.task("following").s()).apply_async()
    lab.wait_for_line(1, policy, "k")
    lab.open("first")
    assert steps.get(timeout=DEADLINE) == "second"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("continuations of a task")
@pytest.mark.parametrize("policy", ["skip", "raise"])
@ONCE
def test_a_replacement_waits_for_the_run_that_has_published_it(stage: Stage, policy: str) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab)
    for number in range(10):
        result = lab.task(policy).delay(f"{number}", "replaced")
        assert result.get(timeout=DEADLINE) == "replacement"
    assert "] skipped: " not in worker.log
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("one task id")
@pytest.mark.parametrize("policy", ["unique", "skip"])
def test_messages_by_name_with_the_task_id_of_the_holder_end_without_a_run(
    make_lab: Callable[..., Lab], stranger: Celery, policy: str
) -> None:
    lab = make_lab(module=SHOP, task_track_started=True)
    worker = lab.start_worker("w1", 3)
    first = stranger.send_task(f"{SHOP}.{policy}", ["k", "first", True], task_id=ID)
    lab.journal.wait_for("start", tag="first")
    eventually(lambda: first.state == "STARTED", "its begin")
    stranger.send_task(f"{SHOP}.{policy}", ["k", "second"], task_id=ID)
    wait_for_lines(f"[{ID}] skipped: ", 1, worker)
    assert_one_run(lab, first)


@pytest.mark.proves("one task id")
def test_with_results_by_rpc_each_call_with_the_task_id_of_the_holder_gets_one(
    make_lab: Callable[..., Lab], redis_url: str
) -> None:
    lab = make_lab(module=SHOP, result_backend="rpc://", exclusive_store=redis_url)
    lab.start_worker("w1", 3)
    call(lab, "skip", "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    second = call(lab, "skip", "second")
    key = lab.task("skip").lock_state("k").key
    assert second.get(timeout=DEADLINE) == {"skipped": {"key": key, "existing_id": ID}}
    lab.open("first")
    lab.journal.wait_for("end", tag="first")
    assert lab.journal.tags() == ["first"]
