"""Children of prefork that are not forked: each is a new interpreter, and makes the app anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from celery import chain

from tests.worker.lab import Lab
from tests.worker.trouble import lose
from tests.worker.versions import needs_celery
from tests.worker.watcher import SENDS_EVENTS, Watcher

pytestmark = [
    needs_celery("5.7", "spawned children"),
]


@pytest.fixture
def conf() -> dict[str, object]:
    return {
        "worker_pool_start_method": "spawn",
        "exclusive_ttl": 600,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
    }


@pytest.mark.promise(
    "Spawned children (Celery 5.7) acquire leases, for longer than a ttl",
    name="spawned children",
    broke="copies of the app have no locks; no roster",
)
def test_spawned_children_take_leases_wait_in_line_and_may_be_killed(
    make_lab: Callable[..., Lab], conf: dict[str, object]
) -> None:
    lab = make_lab(**conf)
    worker = lab.start_worker("w1", 2)
    holder = lab.send("wait", "k", tag="holder", hold=True)
    (start,) = lab.journal.wait_for("start", tag="holder")
    for number in range(6):
        lab.send("wait", "k", tag=f"next{number}")
    lab.wait_for_line(6, "wait", "k")
    arrived = lab.line("wait", "k")
    worker.wait_accepted(holder.id)
    os.kill(int(start["pid"]), signal.SIGKILL)
    worker.wait_for_log("signal 9 (SIGKILL)")
    lab.open("holder")  # it begins again in its place
    lab.journal.wait_for("end", 7)
    assert [event["id"] for event in lab.journal.events("end")] == [holder.id, *arrived]
    assert lab.journal.most_open(tag="next0") == 1
    assert worker.stop() == 0


@pytest.mark.proves("spawned children")
def test_a_spawned_child_keeps_its_lease_for_more_than_a_ttl(
    make_lab: Callable[..., Lab], conf: dict[str, object]
) -> None:
    lab = make_lab(**{**conf, "exclusive_ttl": 9})
    lab.start_worker("w1", 1)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.assert_kept("wait", "k", renewals=4)
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")


@pytest.mark.proves("events while a monitor listens")
def test_spawned_children_send_events(make_lab: Callable[..., Lab], conf: dict[str, object]) -> None:
    lab = make_lab(module="tests.worker.shop_leaks", **conf)
    worker = lab.start_worker("w1", 1, options=SENDS_EVENTS)
    with Watcher(lab, worker) as watcher:
        (event,) = watcher.wait_for("lock-lost", uuid=lose(lab, worker, "loser"))
    assert event["hostname"] == worker.name


@pytest.mark.proves("spawned children")
def test_a_canvas_of_spawned_children_completes_through_parking_retry_and_skip(
    make_lab: Callable[..., Lab], conf: dict[str, object]
) -> None:
    lab = make_lab(module="tests.worker.shop_canvas", **conf)
    lab.start_worker("w1", 4)
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    task = lab.task
    steps = chain(task("append").s(key="k", tag=tag) for tag in "abc").apply_async()
    retried = task("again").delay(key="k", tag="try")
    skipped = task("maybe").delay(key="k", tag="skipped")
    assert "skipped" in skipped.get(timeout=60)
    lab.wait_for_line(2, "hold", "k")
    lab.open("holder")
    assert steps.get(timeout=60) == ["a", "b", "c"]
    assert retried.get(timeout=60) == 2
    assert lab.journal.most_open(key="k") == 1
