"""A worker whose clock is set an hour back, or an hour forward, while it runs a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clocks import Clock
from tests.conftest import or_leave_out
from tests.worker.lab import Lab, Worker, eventually

pytestmark = pytest.mark.promise(
    "The clock of a worker is set an hour back or forward while it runs a task: its lease is renewed "
    "beyond its ttl, no sweep ends the run, no other task enters beside it, and those that wait run after "
    "it, once each; Redis as the store",
    broke="heartbeats that are due by the wall clock; leases that end by the clock of the worker",
)

HOUR = 3600
TTL = 3


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return or_leave_out(lambda: Clock(tmp_path))


def uptime(worker: Worker) -> float:
    """The seconds that it has run by its own clock."""
    stats = worker.lab.app.control.inspect([worker.name], timeout=60, limit=1).stats()
    return float(stats[worker.name]["uptime"])


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
def test_the_run_of_a_worker_whose_clock_steps_keeps_its_key_until_its_end(
    make_lab: Callable[..., Lab], clock: Clock, step: int
) -> None:
    lab = make_lab(module="tests.worker.shop_fenced", task_acks_late=True, exclusive_ttl=TTL)
    stepped = lab.start_worker("stepped", 2, clock=clock)
    first = lab.send("save", "k", tag="first", hold=True, check=True)
    lab.journal.wait_for("start", tag="first")
    lab.start_worker("other", 2)
    second = lab.send("save", "k", tag="second")
    lab.wait_for_line(1, "save", "k")
    clock.step(step)
    eventually(lambda: abs(uptime(stepped)) > HOUR / 2, "the new time")  # of a negative one the rest of a day
    third = lab.send("save", "k", tag="third")
    lab.wait_for_line(2, "save", "k")
    lab.assert_kept("save", "k", renewals=5)  # three in a ttl, and for half of one all sweeps are patient
    assert lab.journal.tags("start") == ["first"]
    lab.open("first")
    assert [result.get(timeout=60) for result in (first, second, third)] == ["first", "second", "third"]
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")
    assert [(event["what"], event["tag"]) for event in lab.journal.events()] == [
        (what, tag) for tag in ("first", "second", "third") for what in ("start", "written", "end")
    ]
