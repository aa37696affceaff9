"""Whatever ends a run - a body, a child, a worker - its key goes on, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.worker.lab import Lab, eventually

pytestmark = pytest.mark.timeout(180)
FAST_REDELIVERY = {
    "broker_transport_options": {
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
}


def hold_with_a_line(lab: Lab, waiting: int = 2) -> int:
    """One body held open and others behind it; returns the pid of its child."""
    lab.send("wait", "k", tag="holder", hold=True)
    (start,) = lab.journal.wait_for("start", tag="holder")
    for number in range(waiting):
        lab.send("wait", "k", tag=f"next{number}")
    lab.wait_for_line(waiting, "wait", "k")
    return int(start["pid"])


def test_a_body_of_three_ttl_keeps_its_lease(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(exclusive_ttl=1, **acks)
    lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    fences = set()
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        state = lab.task("wait").lock_state("k")
        fences.add((state.is_running, state.waiting))
    lab.open("holder")
    lab.journal.wait_for("end", 3)
    assert fences == {(True, 2)}
    assert lab.journal.most_open() == 1


def test_a_ttl_of_its_own_keeps_a_lease_too(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_endings", exclusive_ttl=60, task_acks_late=True)
    lab.start_worker("w1", 2)
    lab.send("brief", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        (holder,) = lab.task("brief").lock_state("k").holders
        assert holder.remaining <= 1
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")


def test_when_a_child_is_killed_the_next_in_line_starts_at_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(exclusive_ttl=60, **acks)
    worker = lab.start_worker("w1", 2)
    os.kill(hold_with_a_line(lab), signal.SIGKILL)
    worker.wait_for_log("signal 9 (SIGKILL)")
    (start,) = lab.journal.wait_for("start", tag="next0", timeout=20)
    assert start
    lab.open("holder")  # under late ack it comes again, behind the others
    lab.journal.wait_for("end", 3 if acks["task_acks_late"] else 2)
    assert lab.journal.tags("end")[:2] == ["next0", "next1"]


def test_when_a_worker_is_killed_its_task_runs_again_and_the_line_goes_on(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(task_acks_late=True, exclusive_ttl=2, **FAST_REDELIVERY)
    doomed = lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    other = lab.start_worker("w2", 1)
    doomed.kill()
    lab.journal.wait_for("end", tag="next1")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    assert lab.journal.tags("end") == ["next0", "next1", "holder"]
    assert len(lab.journal.events("start", tag="holder")) == 2
    assert other.process.poll() is None


def test_when_a_worker_is_killed_the_reaper_of_another_wakes_the_line(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(exclusive_ttl=2, **acks)  # and a broker that delivers again in ten minutes
    doomed = lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    lab.start_worker("w2", 1)
    doomed.kill()
    lab.journal.wait_for("end", tag="next1")
    assert lab.journal.tags("start") == ["holder", "next0", "next1"]


def test_under_early_ack_a_killed_worker_takes_its_task_along_and_no_other(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(exclusive_ttl=2, **FAST_REDELIVERY)
    doomed = lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    lab.start_worker("w2", 1)
    doomed.kill()
    lab.journal.wait_for("end", 2)
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")
    assert lab.journal.tags("end") == ["next0", "next1"]
    assert not lab.task("wait").lock_state("k").is_queued


def test_warm_shutdown_keeps_the_lease_to_the_end_of_the_body(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_ttl=1, task_acks_late=True)
    leaving = lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    lab.start_worker("w2", 1)
    leaving.process.send_signal(signal.SIGTERM)
    leaving.wait_for_log("Warm shutdown")
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        assert lab.task("wait").lock_state("k").is_running
    lab.open("holder")
    lab.journal.wait_for("end", 3)
    assert lab.journal.most_open() == 1
    assert lab.journal.tags("end") == ["holder", "next0", "next1"]
    assert leaving.process.wait(60) == 0


def test_revoking_who_waits_lets_the_next_one_pass(lab: Lab) -> None:
    worker = lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    revoked = lab.send("wait", "k", tag="revoked")
    lab.wait_for_line(1, "wait", "k")
    lab.send("wait", "k", tag="next")
    lab.wait_for_line(2, "wait", "k")
    revoked.revoke()
    worker.wait_for_log("flagged as revoked")
    lab.open("holder")
    lab.journal.wait_for("end", tag="next")
    assert "revoked" not in lab.journal.tags("start")
    assert eventually(lambda: revoked.state == "REVOKED", "REVOKED")
    lab.wait_for_line(0, "wait", "k")


def test_terminating_the_holder_lets_the_next_one_pass(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_ttl=60, task_acks_late=True)
    lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="warm-up")
    lab.journal.wait_for("end", tag="warm-up")
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    holder.revoke(terminate=True)
    lab.journal.wait_for("end", tag="next", timeout=30)
    assert "holder" not in lab.journal.tags("end")


@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
def test_a_time_limit_ends_the_lease_with_the_body(make_lab: Callable[..., Lab], limit: str) -> None:
    lab = make_lab(exclusive_ttl=60, task_acks_late=True)
    lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True, options={limit: 2})
    lab.journal.wait_for("start", tag="holder")
    lab.send("wait", "k", tag="next")
    lab.journal.wait_for("end", tag="next", timeout=30)
    assert lab.journal.tags("end") == ["next"]


def test_after_a_hard_time_limit_nobody_enters_before_the_child_is_gone(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(exclusive_ttl=60, **acks)
    lab.start_worker("w1", 3, ready=False)
    lab.start_worker("w2", 3)
    for key in "abc":
        lab.send("stubborn", key, tag="first", until_killed=True, options={"time_limit": 2})
    for key in "abc":
        lab.journal.wait_for("alive", key=key)
        lab.send("stubborn", key, tag="next")
    lab.journal.wait_for("end", 3, tag="next")
    for key in "abc":
        (start,) = lab.journal.events("start", key=key)
        assert lab.journal.events("alive", key=key)[-1]["at"] < start["at"]


@pytest.mark.parametrize("how", ["return", "raise", "ignore", "reject"])
def test_however_a_body_ends_the_next_in_line_starts(
    make_lab: Callable[..., Lab], acks: dict[str, bool], how: str
) -> None:
    lab = make_lab(module="tests.worker.shop_endings", exclusive_ttl=60, **acks)
    lab.start_worker("w1", 2)
    lab.send("end", "k", tag="first", how=how, hold=True)
    lab.journal.wait_for("start", tag="first")
    lab.send("end", "k", tag="next")
    lab.wait_for_line(1, "end", "k")
    lab.open("first")
    lab.journal.wait_for("end", tag="next", timeout=30)
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")
    assert lab.journal.tags("start") == ["first", "next"]


@pytest.mark.parametrize("has_waited", [True, False])
def test_a_message_that_its_body_gives_back_to_the_queue_runs_again(
    make_lab: Callable[..., Lab], has_waited: bool
) -> None:
    lab = make_lab(module="tests.worker.shop_endings", exclusive_ttl=60, task_acks_late=True)
    lab.start_worker("w1", 2)
    if has_waited:
        lab.send("end", "k", tag="before", hold=True)
        lab.journal.wait_for("start", tag="before")
    lab.send("end", "k", tag="again", how="requeue", hold=True)
    if has_waited:
        lab.wait_for_line(1, "end", "k")
        lab.open("before")
    lab.journal.wait_for("start", tag="again")
    lab.send("end", "k", tag="next")
    lab.wait_for_line(1, "end", "k")
    lab.open("again", "again")
    lab.journal.wait_for("end", 2, tag="again")
    lab.journal.wait_for("end", tag="next")
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")
    assert sorted(lab.journal.tags("start")) == ["again", "again", *["before"][:has_waited], "next"]
    assert lab.journal.most_open() == 1


def test_cold_shutdown_lets_the_line_go_on_and_the_task_run_again_elsewhere(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(exclusive_ttl=2, task_acks_late=True)
    leaving = lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    lab.start_worker("w2", 1)
    leaving.process.send_signal(signal.SIGQUIT)
    lab.journal.wait_for("end", tag="next1")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    assert len(lab.journal.events("start", tag="holder")) == 2
    assert sorted(lab.journal.tags("end")) == ["holder", "next0", "next1"]


def test_a_task_id_that_is_no_utf_8_waits_in_line_and_runs(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(exclusive_ttl=60, result_backend=None, **acks)  # that of Celery refuses such an id
    lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="first", hold=True, options={"task_id": "\udc80-1"})
    lab.journal.wait_for("start", tag="first")
    (holder,) = lab.task("wait").lock_state("k").holders
    assert holder.task_id == "\udc80-1"
    lab.send("wait", "k", tag="second", options={"task_id": "\udc80-2"})
    lab.wait_for_line(1, "wait", "k")
    lab.open("first")
    lab.journal.wait_for("end", tag="second", timeout=30)
    assert lab.journal.most_open() == 1


def test_an_ending_that_cannot_be_followed_up_does_not_keep_others_from_it(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(module="tests.worker.shop_unlucky", exclusive_ttl=60, **acks)
    worker = lab.start_worker("w1", 2)
    task = lab.app.tasks["tests.worker.shop.wait"]
    lab.send("brief", "another", options={"task_id": "poisoned"})
    worker.wait_for_log("the reaper cannot")
    task.delay("k", tag="holder", hold=True)
    (start,) = lab.journal.wait_for("start", tag="holder")
    task.delay("k", tag="next")
    eventually(lambda: task.lock_state("k").waiting == 1, "one in line")
    os.kill(int(start["pid"]), signal.SIGKILL)
    lab.journal.wait_for("start", tag="next", timeout=20)


def test_a_soft_time_limit_beside_the_calls_of_the_store_gives_the_lease_back(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(module="tests.worker.shop_unlucky", exclusive_ttl=60, **acks)
    lab.start_worker("w1", 2)
    task = lab.app.tasks["tests.worker.shop.wait"]
    task.delay("k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    interrupted = task.apply_async(("k",), {"tag": "interrupted"}, task_id="interrupted")
    eventually(lambda: task.lock_state("k").waiting == 1, "one in line")
    task.delay("k", tag="next")
    eventually(lambda: task.lock_state("k").waiting == 2, "two in line")
    lab.open("holder")
    lab.journal.wait_for("start", tag="next", timeout=20)
    assert eventually(lambda: interrupted.state == "FAILURE", "FAILURE")
    assert lab.journal.tags("start") == ["holder", "next"]
