"""`task.restart()`: revoke, release and call in one, beside workers that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_exclusive import Restart
from tests.worker.journal import is_alive
from tests.worker.lab import Lab, eventually
from tests.worker.stage import RABBITS

SHOP = "tests.worker.shop_unique"
DEADLINE = 60
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def hold(lab: Lab, name: str, tag: str = "old") -> Any:
    result = lab.send(name, "k", tag, hold=True)
    lab.journal.wait_for("start", tag=tag)
    return result


def assert_revoked(lab: Lab, *results: Any) -> None:
    for result in results:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=DEADLINE)
    ids = [result.id for result in results]
    assert not [event for event in lab.journal.events("end") if event["id"] in ids]


@pytest.mark.promise(
    "`task.restart()` terminates the run that has the key of the call, ends those in line, keeps a queued "
    "one from running, and publishes the call in their place; it never runs beside the old one",
    name="restarted",
    broke="the line dropped after the run was terminated; no wait for its end; a queued key not released; "
    "a task in the line of its lock only revoked",
)
def test_a_running_and_a_queued_unique_task_are_replaced_by_the_new_call(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=SHOP, **LATE)
    lab.start_worker(concurrency=1)
    once = lab.task("once")
    running = hold(lab, "once")
    (begun,) = lab.journal.events("start")
    assert once.delay("k", "duplicate").id == running.id
    restarted: Restart = once.restart("k", "blocker", hold=True)
    assert (restarted.revoked, restarted.not_ended) == ((running.id,), ()), str(restarted)
    lab.journal.wait_for("start", tag="blocker")
    assert not is_alive(begun["pid"])
    assert_revoked(lab, running)

    queued = once.delay("other", "queued")
    restarted = once.restart("other", "new")
    assert (restarted.revoked, restarted.not_ended) == ((queued.id,), ()), str(restarted)
    assert restarted.result
    lab.open("blocker")
    assert restarted.result.get(timeout=DEADLINE) == "new"
    assert_revoked(lab, queued)
    assert lab.journal.tags() == ["old", "blocker", "new"]


@RABBITS[1]
@pytest.mark.proves("restarted")
def test_the_line_of_a_lock_ends_and_the_new_call_runs_after_the_old_run(
    make_rabbit_lab: Callable[..., Lab], postgres_url: str
) -> None:
    lab = make_rabbit_lab({}, exclusive_store=postgres_url, **LATE)
    lab.start_worker(concurrency=2)
    wait = lab.task("wait")
    results = [hold(lab, "wait"), *(wait.delay("k", f"waiting {n}") for n in range(3))]
    lab.wait_for_line(3, "wait", "k")
    restarted = wait.restart("k", "new")
    assert restarted.revoked == tuple(sorted(result.id for result in results)), str(restarted)
    assert restarted.result.get(timeout=DEADLINE) == "new"
    assert_revoked(lab, *results)
    assert lab.journal.tags() == ["old", "new"]


@pytest.mark.proves("restarted")
def test_without_workers_a_unique_task_in_the_line_of_its_lock_ends_and_the_holder_of_that_stays(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=SHOP, **LATE)
    worker = lab.start_worker(concurrency=2)
    both = lab.task("both")
    holder = lab.send("both", "k", "holder", hold=True, options={"unique": None})
    lab.journal.wait_for("start", tag="holder")
    waiting = both.delay("k", "old")
    lab.wait_for_line(1, "both", "k")
    worker.kill()
    restarted = both.restart("k", "new")
    assert (restarted.revoked, restarted.not_ended) == ((waiting.id,), ()), str(restarted)
    assert_revoked(lab, waiting)
    state = both.lock_state("k")
    assert [it.task_id for it in state.holders] == [holder.id]
    assert state.unique_holder.task_id == restarted.result.id


@pytest.mark.promise(
    "While a worker that may have a queued call has not answered a restart, nothing is published",
    broke="any one worker's answer enough",
)
def test_a_worker_that_does_not_answer_may_have_the_queued_call(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, **LATE)
    silent = lab.start_worker("silent")
    silent.kill()
    lab.start_worker(concurrency=1, worker_prefetch_multiplier=1)  # the call stays in the queue meanwhile
    hold(lab, "once", "blocker")
    queued = lab.task("once").delay("other", "queued")
    restarted = lab.task("once").restart("other", "new", wait=0)
    assert (restarted.result, restarted.revoked, restarted.not_ended) == (None, (), (queued.id,))
    assert restarted.problem == f"{silent.name} has not answered"
    lab.open("blocker")
    assert_revoked(lab, queued)


@pytest.mark.promise(
    "In a pool that cannot terminate a body a restart says so, and which run has not ended: the new call "
    "waits in line for it, and with its unique key is not published",
    broke="published all the same; the answer of the worker not read",
)
def test_in_threads_a_restart_can_only_ask(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, **LATE)
    worker = lab.start_worker(pool="threads")
    running, locked = hold(lab, "once", "unique"), hold(lab, "latest", "locked")
    refused, waits = (lab.task(name).restart("k", "new", wait=0) for name in ("once", "latest"))
    assert (refused.result, refused.revoked, refused.not_ended) == (None, (), (running.id,))
    assert f"nothing was published; revoked: none; not ended: {running.id} ({worker.name}" in str(refused)
    assert "can only ask" in refused.problem
    assert waits.not_ended == (locked.id,)
    assert not waits.result.ready()
    lab.open("unique", "locked")
    assert waits.result.get(timeout=DEADLINE) == "new"
    eventually(lambda: not lab.task("once").lock_state("k").unique_holder, "the end of the run")
    assert lab.task("once").restart("k", "newer").result.get(timeout=DEADLINE) == "newer"
    assert lab.journal.tags() == ["unique", "locked", "new", "newer"]
