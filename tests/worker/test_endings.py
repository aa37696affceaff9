"""A lease lasts as long as its body; and endings of unusual tasks. See the other tests of endings too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.worker.lab import Lab, eventually


def hold_with_a_line(lab: Lab) -> None:
    """One body held open and two behind it."""
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    for number in range(2):
        lab.send("wait", "k", tag=f"next{number}")
    lab.wait_for_line(2, "wait", "k")


@pytest.mark.promise(
    "Run time is unlimited; `ttl` only says how soon a dead holder is noticed",
    name="renewal while the body runs",
    broke="no heartbeat; a heartbeat that knows only `exclusive_ttl`",
)
def test_a_body_of_two_ttl_keeps_its_lease(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(exclusive_ttl=9, **acks)
    lab.start_worker("w1", 2)
    hold_with_a_line(lab)
    lab.assert_kept("wait", "k", renewals=7)
    assert lab.waiting("wait", "k") == 2
    lab.open("holder")
    lab.journal.wait_for("end", 3)
    assert lab.journal.most_open() == 1


@pytest.mark.proves("renewal while the body runs")
def test_a_ttl_of_its_own_keeps_a_lease_too(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_endings", exclusive_ttl=600, task_acks_late=True)
    lab.start_worker("w1", 2)
    lab.send("brief", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    (holder,) = lab.task("brief").lock_state("k").holders
    assert holder.remaining <= 12
    lab.assert_kept("brief", "k")
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")


@pytest.mark.proves("renewal while the body runs")
def test_bodies_in_children_that_came_later_keep_their_leases(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(exclusive_ttl=9, task_acks_late=True)
    lab.start_worker("w1", 1, options=("--autoscale", "3,1"))
    for key in "abc":
        lab.send("wait", key, tag=key, hold=True)
    lab.journal.wait_for("start", 3)
    for key in "abc":  # while the first is renewed past its ttl, so are the others
        lab.assert_kept("wait", key, renewals=4 if key == "a" else 1)
    lab.open(*"abc")
    lab.journal.wait_for("end", 3)


def test_a_task_id_that_is_no_utf_8_waits_in_line_and_runs(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(exclusive_ttl=600, result_backend=None, **acks)  # that of Celery refuses such an id
    lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="first", hold=True, options={"task_id": "\udc80-1"})
    lab.journal.wait_for("start", tag="first")
    (holder,) = lab.task("wait").lock_state("k").holders
    assert holder.task_id == "\udc80-1"
    lab.send("wait", "k", tag="second", options={"task_id": "\udc80-2"})
    lab.wait_for_line(1, "wait", "k")
    lab.open("first")
    lab.journal.wait_for("end", tag="second")
    assert lab.journal.most_open() == 1


@pytest.mark.proves("unreachable at a release")
def test_an_ending_that_cannot_be_followed_up_does_not_keep_others_from_it(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(module="tests.worker.shop_unlucky", exclusive_ttl=600, **acks)
    worker = lab.start_worker("w1", 2)
    task = lab.app.tasks["tests.worker.shop.wait"]
    lab.send("brief", "another", options={"task_id": "poisoned"})
    worker.wait_for_log("was not released and expires after its ttl")
    holder = task.delay("k", tag="holder", hold=True)
    (start,) = lab.journal.wait_for("start", tag="holder")
    task.delay("k", tag="next")
    eventually(lambda: task.lock_state("k").waiting == 1, "one in line")
    worker.wait_accepted(holder.id)
    os.kill(int(start["pid"]), signal.SIGKILL)
    # With late acknowledgement it runs again before the next one. Redis may not have noticed its death.
    lab.open("holder", "holder")
    lab.journal.wait_for("start", tag="next")
