"""lock() and apply() beside real workers: the same key, whoever holds it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_exclusive import LockHeld
from celery_exclusive import lock as lock_
from tests.worker.journal import eventually
from tests.worker.lab import Lab

Lock = Callable[..., lock_]


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """A lab in which whoever releases has to wake the next: offers are repeated after ten minutes."""
    return make_lab(
        module="tests.worker.shop_lock",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        exclusive_offer=600,
    )


@pytest.fixture
def lock(lab: Lab) -> Lock:
    return lambda text="repo:17", **options: lock_(text, app=lab.app, **options)


@pytest.mark.promise(
    "Tasks wait behind a `lock()` and run at its release, and the reverse",
    name="tasks behind a lock",
    broke="release wakes no task",
)
def test_tasks_wait_in_line_behind_a_lock_and_run_as_soon_as_it_is_released(lab: Lab, lock: Lock) -> None:
    lab.start_worker(concurrency=2)
    with lock() as lease:
        for waiting, tag in enumerate("ab", 1):
            lab.send("sync", 17, tag=tag)
            lab.wait_for_line(waiting, "sync", 17)
        (holder,) = lab.task("sync").lock_state(17).holders
        assert holder.task_id == f"lock:{os.uname().nodename}:{os.getpid()}"
        skipped = lab.send("peek", 17).get(timeout=60)
        assert skipped == {"skipped": {"key": "x=repo:17", "existing_id": holder.task_id}}
        with pytest.raises(LockHeld):
            lock(wait=0).__enter__()
        assert lab.journal.tags() == []
    events = lab.journal.wait_for("end", 2)
    assert [event["tag"] for event in events] == ["a", "b"]
    fences = [lease.fence, *(event["fence"] for event in events)]
    assert fences == sorted(set(fences))


@pytest.mark.proves("tasks behind a lock")
def test_a_lock_and_apply_wait_for_a_running_task_and_then_hold_its_key(lab: Lab, lock: Lock) -> None:
    lab.start_worker(concurrency=2)
    running = lab.send("sync", 17, tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    with pytest.raises(LockHeld, match=f"x=repo:17 is held by {running.id} for ") as raised, lock(wait=0):
        pass
    assert raised.value.holder == running.id

    def in_block() -> int:
        with lock() as lease:
            lab.journal.write("start", tag="block", id="block")
            lease.check()
            lab.journal.write("end", tag="block", id="block")
            return lease.fence

    with ThreadPoolExecutor(2) as pool:
        block = pool.submit(in_block)
        applied = pool.submit(lambda: lab.task("sync").apply((17, "applied")).get())
        lab.open("a")
        assert block.result(60) > 0
        assert applied.result(60) == "applied"
    assert lab.journal.most_open() == 1
    assert lab.journal.tags()[0] == "a"
    assert sorted(lab.journal.tags()) == ["a", "applied", "block"]


@pytest.mark.proves("tasks behind a lock")
def test_a_task_waits_for_an_apply_of_another_process_and_is_woken_by_it(lab: Lab) -> None:
    lab.start_worker(concurrency=2)
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(lambda: lab.task("sync").apply((17, "applied", True)).get())
        lab.journal.wait_for("start", tag="applied")
        lab.send("sync", 17, tag="a")
        lab.wait_for_line(1, "sync", 17)
        lab.open("applied")
        assert applied.result(60) == "applied"
    lab.journal.wait_for("end", tag="a")
    assert lab.journal.most_open() == 1


@pytest.mark.proves("reentrant")
def test_a_body_that_wants_what_its_run_holds_does_not_wait_for_itself(lab: Lab) -> None:
    lab.start_worker(concurrency=1)
    refused, inside = lab.send("again", 17).get(timeout=60)
    assert "lock x=repo:17 is held by the very code that waits for it" in refused
    assert inside == "inside"
    eventually(lambda: not lab.task("again").lock_state(17).is_running, "the end of the run")


def test_a_lock_in_a_body_ends_with_it_however_it_ends(lab: Lab, lock: Lock) -> None:
    worker = lab.start_worker(concurrency=2)
    assert lab.send("linger", "soft").get(timeout=60) == "over"
    assert not lock("soft").locked()
    lab.send("hold_for_ever", "killed")
    (event,) = lab.journal.wait_for("locked", tag="killed")
    assert lock("killed").locked()
    os.kill(event["pid"], signal.SIGKILL)
    worker.kill()
    with lock("killed", wait=60):
        pass
