"""Waiting in line: one at a time, in order, without using a slot."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from celery_exclusive import Exclusive
from tests.worker.lab import REPOSITORY, Lab, eventually


def publish_from_processes(lab: Lab, task: str, key: str, processes: int, each: int) -> None:
    publishers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.worker.publisher", task, key, str(each), f"p{number}-"],
            env=lab.environment, cwd=REPOSITORY,
        )
        for number in range(processes)
    ]  # fmt: skip
    assert [publisher.wait(120) for publisher in publishers] == [0] * processes


@pytest.mark.promise(
    "At most `limit` unexpired owners hold a key, by the store's clock",
    name="exclusion",
    broke="explorer: one too many; stress: barge, short leases",
)
@pytest.mark.promise(
    "Waiting tasks run in the order in which they reached the store; none passes another",
    name="order",
    broke=(
        "all are woken, and the first to come runs; the last to come is the first, a newcomer passes "
        "(kit); a new position when parked again; a retry that keeps its publish id"
    ),
)
@pytest.mark.proves("two hundred on one key")
def test_two_hundred_on_one_key_run_one_at_a_time_in_the_order_in_which_they_reached_the_store(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    lab.start_worker("w1", 4, ready=False)
    lab.start_worker("w2", 4)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    publish_from_processes(lab, "wait", "k", processes=4, each=50)
    lab.wait_for_line(200, "wait", "k", timeout=240)
    arrived = lab.line("wait", "k")
    lab.open("holder")
    ends = lab.journal.wait_for("end", 201, timeout=240)
    assert [event["id"] for event in lab.journal.events("start")[1:]] == arrived
    assert len({event["id"] for event in ends}) == 201
    assert lab.journal.most_open() == 1
    assert lab.line("wait", "k") == []


@pytest.mark.promise(
    "200 tasks on one key, 4 publishers: all run, never two at once, in the store's order, by two workers "
    "of 4; by one worker `-c 1` with the default prefetch, in the order of delivery",
    name="two hundred on one key",
    broke="on two workers: a gate that lets all in",
    figure="early and late",
)
def test_two_hundred_on_one_key_and_one_slot_run_in_the_order_of_delivery(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    worker = lab.start_worker("w1", 1)
    publish_from_processes(lab, "wait", "k", processes=4, each=50)
    lab.journal.wait_for("end", 200, timeout=240)
    received = re.findall(r"shop\.wait\[(.*?)\] received", worker.log)
    assert [event["id"] for event in lab.journal.events("start")] == received
    assert lab.journal.most_open() == 1


@pytest.mark.promise(
    "A waiting task uses no worker slot and polls nothing",
    name="no slot, no polling",
    broke="waiting in the slot; waiting by a delayed copy",
)
def test_a_waiting_task_uses_no_slot(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(**acks)
    worker = lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    for number in range(20):
        lab.send("wait", "k", tag=f"waiting{number}")
    lab.wait_for_line(20, "wait", "k")
    active = lab.app.control.inspect(destination=[worker.name], timeout=20).active()
    assert [task["kwargs"]["tag"] for task in active[worker.name]] == ["holder"]
    lab.send("plain", tag="other")
    lab.journal.wait_for("end", tag="other")
    lab.open("holder")
    lab.journal.wait_for("end", 22)
    assert lab.journal.tags("start", key="k") == ["holder", *(f"waiting{number}" for number in range(20))]


@pytest.mark.promise("50 tasks of another kind finish before the 20th of a line of 60")
def test_others_overtake_a_long_line(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(**acks)
    lab.start_worker("w1", 4, ready=False)
    lab.start_worker("w2", 4)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    for number in range(60):
        lab.send("wait", "k", tag=f"line{number:02}", seconds=0.05)
    lab.wait_for_line(60, "wait", "k")
    for number in range(50):
        lab.send("plain", tag=f"other{number:02}")
    lab.open("holder")
    lab.journal.wait_for("end", 111)
    ends = lab.journal.tags("end")
    assert max(ends.index(f"other{number:02}") for number in range(50)) < ends.index("line19")


@pytest.mark.proves("exclusion", "two hundred on one key")
def test_a_limit_of_three_is_used_and_kept(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(**acks)
    lab.start_worker("w1", 4, ready=False)
    lab.start_worker("w2", 4)
    holders = ("a", "b", "c")
    for tag in holders:
        lab.send("three", "k", tag=tag, hold=True)
    lab.journal.wait_for("start", 3)
    for number in range(27):
        lab.send("three", "k", tag=str(number))
    lab.wait_for_line(27, "three", "k")
    lab.open(*holders)
    lab.journal.wait_for("end", 30)
    assert lab.journal.most_open() == 3


@pytest.mark.proves("no slot, no polling")
def test_a_waiting_task_causes_no_traffic_while_the_holder_lives(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(task_acks_late=True, exclusive_ttl=9, exclusive_reap_period=0.2)
    lab.start_worker("w1", 2)
    holder = lab.send("wait", "k", tag="holder", hold=True).id
    lab.journal.wait_for("start", tag="holder")
    waiting = [lab.send("wait", "k", tag=f"waiting{number}").id for number in range(5)]
    lab.wait_for_line(5, "wait", "k")
    eventually(lambda: lab.messages_at_the_broker() <= 1, "the acknowledgements of those who wait")
    heard: list[str] = []
    with lab.doors.monitor() as monitor:
        while sum(holder in command for command in heard) < 3:  # the heartbeat, and the reaper between
            said = monitor.next_command()
            heard += [said["command"]] if said["client_type"] != "lua" else []
    assert any(" reap " in command for command in heard)
    assert not [command for command in heard if any(id in command for id in waiting)]
    lab.open("holder")
    lab.journal.wait_for("end", 6)


@pytest.mark.promise(
    "The log says at which place a task waits and for which holder, as `exclusive_preview` allows",
)
@pytest.mark.parametrize("is_shown", [True, False])
def test_the_log_says_at_which_place_a_task_waits_and_for_which_holder(
    make_lab: Callable[..., Lab], is_shown: bool
) -> None:
    lab = make_lab(task_acks_late=True, exclusive_preview=is_shown)
    worker = lab.start_worker("w1", 2)
    holder = lab.send("wait", "k", tag="holder", hold=True).id
    lab.journal.wait_for("start", tag="holder")
    for place in (1, 2):
        options = {"exclusive": Exclusive("key", order="arrived")}
        id = lab.send("wait", "k", tag=str(place), options=options).id
        line = worker.wait_for_log(f"[{id}] parked: ")
        lock = re.escape(lab.task("wait").lock_state("k").key + (" (key='k')" if is_shown else ""))
        said = rf"Task tests\.worker\.shop\.wait\[{id}\] parked: number {place} in line for lock {lock}"
        assert re.search(rf": INFO/.*{said} held by {holder} for \d+\.\d+s$", line)
    lab.open("holder")
