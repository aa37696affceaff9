"""A transport that does not say of a message that it is delivered again: files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.lab import Lab, eventually

DEADLINE = 90


@pytest.fixture
def lab(make_lab: Callable[..., Lab], tmp_path: Path) -> Lab:
    (tmp_path / "messages").mkdir()
    folders = {f"data_folder_{end}": str(tmp_path / "messages") for end in ("in", "out")}
    return make_lab(
        module="tests.worker.shop_endings",
        broker_url="filesystem://",
        broker_transport_options={**folders, "control_folder": str(tmp_path / "control")},
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_enable_remote_control=False,
    )


@pytest.mark.promise(
    "With late acknowledgement the store keeps a message until its run is done, and a delivery is stale "
    "only because of a tombstone or a live lease",
    name="unflagged redelivery",
    broke="explorer: stale for want of an entry; red before",
)
@pytest.mark.parametrize("how", ["reject-requeue", "child-killed"])
def test_a_task_that_had_waited_and_is_redelivered_unflagged_runs_again(lab: Lab, how: str) -> None:
    lab.start_worker("w1", 2)
    lab.send("end", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    again = lab.send("end", "k", tag="again", how=how)
    lab.wait_for_line(1, "end", "k")
    lab.open("k")
    lab.journal.wait_for("start", 2, tag="again", timeout=DEADLINE)
    lab.journal.wait_for("end", tag="again", timeout=DEADLINE)
    assert again.get(timeout=DEADLINE) is None
    eventually(lambda: not lab.task("end").lock_state("k").is_running, "a free key")
    assert len(lab.journal.events("start", tag="again")) == 2
    assert not lab.journal.events("beside")
    assert lab.doors.zcard("cx2:{0}:due") == 0


@pytest.mark.proves("unflagged redelivery")
def test_a_child_that_is_killed_in_its_second_life_runs_a_third_time(lab: Lab) -> None:
    lab.start_worker("w1", 2)
    again = lab.send("end", "k", tag="again", how="child-killed", hold=True)
    (first,) = lab.journal.wait_for("start", tag="again")
    after = lab.send("end", "k", tag="after")
    lab.wait_for_line(1, "end", "k")
    os.kill(first["pid"], signal.SIGKILL)
    assert [result.get(timeout=DEADLINE) for result in (after, again)] == [None, None]
    assert not lab.journal.events("beside")
