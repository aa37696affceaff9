"""The same message delivered again: beside its own run, after it, and after a lost acknowledgement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.worker.lab import Lab, eventually
from tests.worker.message import Message, stop_consuming, wait_for_lines

PARKED, DROPPED = "parked: ", "dropped: another copy"
SHOP, SHOP_IN_ORDER = "tests.worker.shop_arrived", "tests.worker.shop"


@pytest.fixture
def make_lab(make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose tasks take their places when a worker receives them."""
    return partial(make_lab, module=SHOP)


@pytest.fixture(params=[SHOP, SHOP_IN_ORDER])
def in_each_order(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The setting of a lab whose tasks start as they arrive, and of one whose tasks start as published."""
    return {"module": request.param}


def runs_of(message: Message) -> int:
    return len(message.lab.journal.events("start", id=message.id))


def wait_for_end(message: Message) -> None:
    """Wait for the end of its run: of the body, and of what the library does behind it."""
    message.lab.journal.wait_for("end", id=message.id)
    eventually(lambda: not is_running(message), "the release of its lease")


def is_running(message: Message) -> bool:
    state = message.lab.task("wait").lock_state("k")
    return message.id in [holder.task_id for holder in state.holders]


def run_behind(holder: Message, message: Message) -> None:
    """Let one message wait in line behind another, and run both to their ends."""
    lab = holder.lab
    holder.deliver()
    lab.journal.wait_for("start", id=holder.id)
    message.deliver()
    lab.wait_for_line(1, "wait", "k")
    lab.open("holder")
    wait_for_end(message)


@pytest.mark.promise(
    "A task that is redelivered while it runs neither runs beside itself nor twice, unless its first run "
    "dies",
    name="redelivered while running",
    broke="one token for all deliveries; no sweeps",
)
def test_a_copy_of_a_running_task_neither_runs_beside_it_nor_answers_for_it(
    make_lab: Callable[..., Lab], acks: dict[str, bool], in_each_order: dict[str, Any]
) -> None:
    lab = make_lab(task_track_started=True, **acks, **in_each_order)
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    worker = lab.start_worker("w1", 2)
    message.deliver()
    lab.journal.wait_for("start", tag="a")
    eventually(lambda: message.result.state == "STARTED", "STARTED")
    before = message.stored_result
    message.deliver_again()
    worker.wait_for_log(PARKED)
    lab.send("wait", "k", tag="after")
    lab.wait_for_line(1, "wait", "k")
    assert message.stored_result == before
    lab.open("a")
    lab.journal.wait_for("end", tag="after")
    assert message.result.get(timeout=60) == "a"
    assert lab.journal.tags("start") == ["a", "after"]


@pytest.mark.proves("redelivered while running")
def test_a_body_longer_than_the_visibility_timeout_runs_once(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(
        task_acks_late=True,
        broker_transport_options={
            "visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
        },
    )  # fmt: skip
    workers = [lab.start_worker(name, 2) for name in ("w1", "w2")]
    lab.send("wait", "k", tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    wait_for_lines(PARKED, 1, *workers)
    lab.send("wait", "k", tag="after")
    lab.wait_for_line(1, "wait", "k")
    lab.open("a")
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["a", "after"]


@pytest.mark.proves("redelivered while running")
def test_a_copy_runs_when_the_worker_of_the_first_run_dies(
    make_lab: Callable[..., Lab], acks: dict[str, bool], in_each_order: dict[str, Any]
) -> None:
    lab = make_lab(exclusive_ttl=9, **acks, **in_each_order)
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    doomed = lab.start_worker("w1", 2)
    message.deliver()
    lab.journal.wait_for("start", tag="a")
    other = lab.start_worker("w2", 2)
    message.deliver_again()
    wait_for_lines(PARKED, 1, doomed, other)
    doomed.kill()
    first, second = lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    assert message.result.get(timeout=60) == "a"
    assert first["pid"] != second["pid"]
    assert first["fence"] < second["fence"]


def test_a_copy_runs_when_the_child_of_the_first_run_dies(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(task_acks_late=True, task_reject_on_worker_lost=True, exclusive_ttl=600)
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    worker = lab.start_worker("w1", 2)
    message.deliver()
    (first,) = lab.journal.wait_for("start", tag="a")
    message.deliver_again()
    worker.wait_for_log(PARKED)
    worker.wait_accepted(message.id)
    os.kill(first["pid"], signal.SIGKILL)
    lab.journal.wait_for("start", 2, tag="a")
    lab.send("wait", "k", tag="after")
    lab.open("a")
    assert message.result.get(timeout=60) == "a"
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["a", "a", "after"]


@pytest.mark.promise(
    'A copy of a task that never waited, nor has `order="published"`, runs again after its end, as in plain '
    "Celery",
    broke="every end leaves a tombstone",
)
@pytest.mark.parametrize("task", ["plain", "wait"])
def test_a_copy_after_the_end_of_a_task_that_never_waited_runs_again_as_in_plain_celery(
    make_lab: Callable[..., Lab], acks: dict[str, bool], task: str
) -> None:
    lab = make_lab(**acks)
    arguments = () if task == "plain" else ("k",)
    message = Message.withheld(lab, task, *arguments, tag="a")
    lab.start_worker("w1", 1)
    message.deliver()
    lab.journal.wait_for("end", tag="a")
    message.deliver_again()
    lab.journal.wait_for("end", 2, tag="a")


@pytest.mark.promise(
    "Celery's `worker_deduplicate_successful_tasks` drops a copy that comes after a success",
    broke="without the setting",
)
@pytest.mark.parametrize("task", ["plain", "wait"])
def test_a_copy_after_a_success_that_never_waited_is_dropped_with_celerys_own_setting(
    make_lab: Callable[..., Lab], task: str
) -> None:
    lab = make_lab(task_acks_late=True, worker_deduplicate_successful_tasks=True)
    arguments = () if task == "plain" else ("k",)
    message = Message.withheld(lab, task, *arguments, tag="a")
    lab.start_worker("w1", 1)
    message.deliver()
    assert message.result.get(timeout=60) == "a"
    message.deliver_again()
    lab.send(task, *arguments, tag="after")
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["a", "after"]


@pytest.mark.promise(
    'A task with `order="published"` that was sent once runs again if the broker delivers it again after its '
    "end, as in plain Celery. It leaves the mark of its call for five minutes, and no tombstone",
    broke="a tombstone of each call, for 7,800 s where the broker is Redis",
    also=(
        "all of `unit/core/test_step_enqueue.py`; "
        "`kit::test_a_message_that_was_sent_once_runs_again_if_the_broker_brings_it_back`"
    ),
)
def test_a_copy_after_the_end_of_a_task_that_was_sent_once_runs_as_in_plain_celery(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks, module=SHOP_IN_ORDER)
    message = Message.withheld(lab, "wait", "k", tag="a")
    lab.start_worker("w1", 1)
    message.deliver()
    wait_for_end(message)
    (mark,) = lab.doors.scan_iter("cx2:*:t:*", _type="string")
    assert 0 < lab.doors.pttl(mark) <= 301_000
    message.deliver_again()
    lab.journal.wait_for("end", 2, tag="a")


@pytest.mark.proves("no second run of ours")
def test_a_copy_after_the_end_of_a_task_that_had_waited_is_dropped(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    holder = Message.withheld(lab, "wait", "k", tag="holder", hold=True)
    message = Message.withheld(lab, "wait", "k", tag="a")
    worker = lab.start_worker("w1", 2)
    run_behind(holder, message)
    message.result.get(timeout=60)
    before = message.stored_result
    message.deliver_again()
    worker.wait_for_log(DROPPED)
    assert runs_of(message) == 1
    assert message.stored_result == before


@pytest.mark.proves("no second run of ours")
def test_a_copy_after_the_end_of_a_task_that_had_met_its_own_run_is_dropped(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    worker = lab.start_worker("w1", 2)
    message.deliver()
    lab.journal.wait_for("start", tag="a")
    message.deliver_again()
    worker.wait_for_log(PARKED)
    lab.open("a")
    wait_for_end(message)
    message.deliver_again()
    worker.wait_for_log(DROPPED)
    assert runs_of(message) == 1


def test_a_promoted_message_delivered_again_while_it_runs_does_not_run_beside_itself(lab: Lab) -> None:
    worker = lab.start_worker("w1", 2)
    promoted = promote(lab)
    promoted.deliver_again()
    wait_for_lines(PARKED, 2, worker)
    lab.send("wait", "k", tag="after")
    lab.wait_for_line(1, "wait", "k")
    lab.open("a")
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["holder", "a", "after"]


def test_a_promoted_message_delivered_again_after_it_has_run_is_dropped(lab: Lab) -> None:
    worker = lab.start_worker("w1", 2)
    promoted = promote(lab)
    lab.open("a")
    wait_for_end(promoted)
    promoted.deliver_again()
    worker.wait_for_log(DROPPED)
    assert runs_of(promoted) == 1


def test_a_promoted_message_whose_worker_dies_runs_again(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(task_acks_late=True, exclusive_ttl=9)
    doomed = lab.start_worker("w1", 2)
    promoted = promote(lab)
    doomed.kill()
    lab.start_worker("w2", 1)
    promoted.deliver_again()
    lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    lab.journal.wait_for("end", tag="a")


@pytest.mark.proves("order")
def test_a_parked_task_delivered_again_keeps_its_place_and_runs_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    first, second = (Message.withheld(lab, "wait", "k", tag=tag) for tag in ("first", "second"))
    worker = lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    for number, message in enumerate((first, second), 1):
        message.deliver()
        lab.wait_for_line(number, "wait", "k")
    first.deliver_again()
    wait_for_lines(PARKED + "number 1 in line", 2, worker)
    lab.open("holder")
    lab.journal.wait_for("end", tag="second")
    lab.send("wait", "k", tag="after")
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["holder", "first", "second", "after"]


@pytest.mark.parametrize("comes", ["before the promoted one", "after the promoted one"])
def test_a_parked_task_delivered_again_when_its_turn_has_come_runs_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool], comes: str
) -> None:
    lab = make_lab(**acks)
    message = Message.withheld(lab, "wait", "k", tag="a")
    parking = lab.start_worker("w1", 2)
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    message.deliver()
    lab.wait_for_line(1, "wait", "k")
    stop_consuming(lab, parking, "lab")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("lab"), "the promoted message in the queue")
    message.deliver_again(last=comes == "after the promoted one")
    worker = lab.start_worker("w2", 1)
    worker.wait_for_log(DROPPED)
    lab.journal.wait_for("end", tag="a")
    assert runs_of(message) == 1


@pytest.mark.promise(
    "A task that waits is stored before its message is acknowledged, so nothing is lost that plain Celery "
    "would not lose",
    name="stored before acknowledged",
    broke="explorer: park in two steps",
)
@pytest.mark.each_part
def test_a_task_whose_worker_dies_between_parking_and_acknowledging_it_runs_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    settings = {
        "broker_transport_options": {
            "visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
        },
        **acks,
    }  # fmt: skip
    lab = make_lab(**settings)
    holding = lab.start_worker("w1", 2, options=("-Q", "holding"))
    lab.send("wait", "k", tag="holder", hold=True, options={"queue": "holding"})
    lab.journal.wait_for("start", tag="holder")
    doomed = make_lab(module="tests.worker.shop_doomed", **settings).start_worker("w2", 1)
    message = lab.send("wait", "k", tag="a")
    doomed.process.wait(60)
    assert message.id in lab.line("wait", "k")  # perhaps not alone: the holder's message may have come again
    heir = lab.start_worker("w3", 1)
    if acks["task_acks_late"]:
        wait_for_lines(f"Task {SHOP}.wait[{message.id}] {PARKED}", 1, heir)
    lab.open("holder")
    assert message.get(timeout=60) == "a"
    eventually(lambda: not lab.doors.hlen("unacked") and not lab.doors.llen("lab"), "an empty broker")
    lab.send("wait", "k", tag="after")
    lab.journal.wait_for("end", tag="after")
    assert lab.journal.tags("start") == ["holder", "a", "after"]
    assert holding.process.poll() is None


def promote(lab: Lab) -> Message:
    """Let one task wait for that of another worker, and then be running, held at its door."""
    lab.start_worker("other", 1, options=("-Q", "holding"))
    lab.send("wait", "k", tag="holder", hold=True, options={"queue": "holding"})
    lab.journal.wait_for("start", tag="holder")
    id = lab.send("wait", "k", tag="a", hold=True).id
    lab.wait_for_line(1, "wait", "k")
    lab.open("holder")
    lab.journal.wait_for("start", tag="a")
    message = Message.unacknowledged(lab, id)
    assert message.content["headers"]["exclusive"]["promoted"]
    return message
