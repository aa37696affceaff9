"""A message whose turn has come stays in the worker: no broker between its predecessor's end and its run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.rabbit import RabbitServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import stop_consuming
from tests.worker.stage import RABBITS
from tests.worker.test_blocked_broker import memory_alarm
from tests.worker.test_rabbit import DEADLINE
from tests.worker.versions import needs_celery, of_fast_part

RELAY = "tests.worker.shop_relay"
VICTIMS = ("child that sends", "worker that receives", "worker that has received")


def line_up(lab: Lab, count: int, name: str = "wait", **options: Any) -> list[Any]:
    """Let so many wait behind a holder whose door is closed."""
    lab.send(name, "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    results = []
    for number in range(count):
        results.append(lab.send(name, "k", tag=str(number), **options))
        lab.wait_for_line(number + 1, name, "k")
    return results


def published(lab: Lab) -> int:
    """How many messages were put into a list since the counts were reset."""
    stats = lab.doors.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("lpush", "rpush"))


@pytest.mark.promise(
    "A line in one prefork worker moves without a message of the broker, in order, in turn with what the "
    "broker has delivered; also while RabbitMQ blocks publishers",
    name="handed on",
    broke=(
        "no relay: 20 messages for 20 tasks; not before those that wait; `Slots` that takes no turns, "
        "never chooses the oldest, or keeps what was handed on when Celery clears its queue"
    ),
)
@of_fast_part
def test_a_line_in_one_worker_takes_no_message_of_the_broker(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks, task_ignore_result=True)
    worker = lab.start_worker("w1", 2)
    line_up(lab, 20)
    lab.doors.config_resetstat()
    lab.open("holder")
    lab.journal.wait_for("end", 21)
    assert lab.journal.tags("start") == ["holder", *map(str, range(20))]
    assert lab.journal.most_open() == 1
    assert published(lab) == 1, "the door alone"
    eventually(lambda: not lab.messages_at_the_broker(), "an empty queue")
    assert lab.waiting("wait", "k") == 0
    assert worker.stop() == 0
    assert not lab.messages_at_the_broker(), "a worker that stops publishes only what has not ended"


@pytest.mark.proves("handed on")
@of_fast_part
def test_handed_on_messages_and_deliveries_of_the_broker_get_slots_in_turn(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(task_acks_late=True)
    lab.start_worker("w1", 2)
    line_up(lab, 3)
    lab.send("plain", tag="other", hold=True)
    lab.journal.wait_for("start", tag="other")
    reserved = [lab.send("plain", tag=f"reserved{number}") for number in range(3)]

    def are_reserved() -> bool:
        tasks = (lab.app.control.inspect(timeout=5, limit=1).reserved() or {}).get("w1@lab", ())
        return {task["id"] for task in tasks} >= {result.id for result in reserved}

    eventually(are_reserved, "three that wait for a slot")
    lab.open("holder")
    lab.journal.wait_for("end", tag="reserved2")
    assert lab.journal.tags("start")[2:] == ["0", "reserved0", "1", "reserved1", "2", "reserved2"]
    lab.open("other")


@pytest.mark.promise(
    "A kill while a message is handed on, of the child or of the worker that has received it, loses "
    "nothing and repeats nothing",
    broke="no reaper",
)
@of_fast_part
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_while_a_message_is_handed_on_loses_nothing(
    make_lab: Callable[..., Lab], acks: dict[str, bool], victim: str
) -> None:
    lab = make_lab(module=RELAY, exclusive_ttl=5, exclusive_offer=1, **acks)
    worker = lab.start_worker("w1", 2, victim=victim)
    results = line_up(lab, 3, "turn")
    lab.open("holder", "holder")  # its own child may die before it is acknowledged
    if victim != VICTIMS[0]:
        worker.process.wait(60)
        worker.kill()
        lab.start_worker("w2", 2)
    assert [result.get(timeout=120) for result in results] == ["0", "1", "2"]
    assert [tag for tag in lab.journal.tags("start") if tag != "holder"] == ["0", "1", "2"]
    assert lab.journal.most_open() == 1
    eventually(lambda: lab.waiting("turn", "k") == 0, "an empty line")


@pytest.mark.promise(
    "A message that was handed on just as its worker stopped runs once, also if Celery has forgotten it in "
    "the pipe of a child that runs it all the same",
    broke="a run that is not noted as done",
)
@of_fast_part
def test_a_task_that_was_handed_on_and_that_its_stopping_worker_has_forgotten_runs_once(
    make_lab: Callable[..., Lab],
) -> None:
    """Celery forgets what a child has in its pipe and has not acknowledged. It runs all the same."""
    lab = make_lab(module=RELAY, task_acks_late=True, worker_prefetch_multiplier=1)
    worker = lab.start_worker("w1", 1, options=("-l", "DEBUG"), victim="child that has sent")
    (child,) = worker.children
    lab.send("turn", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.start_worker("other", 1)
    results = []
    for number in range(2):
        results.append(lab.send("turn", "k", tag=str(number)))
        lab.wait_for_line(number + 1, "turn", "k")
    lab.open("holder")

    def written() -> int:
        stats = lab.app.control.inspect([worker.name], timeout=5, limit=1).stats() or {}
        return int(stats[worker.name]["pool"]["writes"]["total"]) if stats else 0

    eventually(lambda: written() == 2, "the next task in the pipe of the child")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for_log("Stopping Pool")
    os.kill(child, signal.SIGCONT)
    worker.process.wait(60)
    assert [result.get(timeout=60) for result in results] == ["0", "1"]
    assert lab.journal.events("start", tag="0")[0]["pid"] == child
    eventually(lambda: not lab.messages_at_the_broker(), "an empty queue")
    assert lab.journal.tags("start") == ["holder", "0", "1"]
    assert lab.waiting("turn", "k") == 0


@pytest.mark.promise(
    "A task that was handed on can be requeued (its body sees `redelivered`), retried and revoked like any "
    "other, and comes again after a cold shutdown",
    name="handed on like any other",
)
def test_a_task_that_was_handed_on_and_asks_for_another_delivery_gets_it(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=RELAY, task_acks_late=True, exclusive_offer=600)
    lab.start_worker("w1", 2)
    results = line_up(lab, 2, "requeue")
    lab.open("holder")
    assert [result.get(timeout=60) for result in results] == ["0", "1"]
    assert sorted(lab.journal.tags("start")) == ["0", "0", "1", "1", "holder"]
    assert sorted(lab.journal.tags("redelivered")) == ["0", "1"], "of the second ones"
    assert lab.journal.most_open() == 1
    eventually(lambda: lab.waiting("requeue", "k") == 0, "an empty line")


@pytest.mark.proves("handed on like any other")
def test_a_task_that_was_handed_on_is_retried(make_lab: Callable[..., Lab], acks: dict[str, bool]) -> None:
    lab = make_lab(module=RELAY, **acks)
    lab.start_worker("w1", 2)
    results = line_up(lab, 2, "again")
    lab.open("holder")
    assert [result.get(timeout=60) for result in results] == ["0", "1"]
    assert lab.journal.tags("start") == ["holder", "0", "1", "0", "1"]
    assert lab.waiting("again", "k") == 0


@pytest.mark.proves("handed on like any other")
def test_a_revoked_task_in_line_is_not_run_when_it_is_handed_on(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks)
    worker = lab.start_worker("w1", 2)
    results = line_up(lab, 3)
    assert lab.app.control.revoke(results[1].id, reply=True, timeout=60, limit=1)
    lab.open("holder")
    assert [results[number].get(timeout=60) for number in (0, 2)] == ["0", "2"]
    assert f"Discarding revoked task: {lab.task('wait').name}[{results[1].id}]" in worker.log
    assert lab.journal.tags("start") == ["holder", "0", "2"]


@pytest.mark.promise(
    "A message that the worker cannot run goes to the broker: too long, of a queue that the worker has "
    "left, when it stops; and one that RabbitMQ may dead-letter",
    name="not handed on",
    broke="no limit; every queue; not published at the end (600 s); late tasks of RabbitMQ handed on",
)
@of_fast_part
def test_a_large_message_goes_through_the_broker(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(task_acks_late=True, task_ignore_result=True)
    lab.start_worker("w1", 2)
    line_up(lab, 1)
    tag = "x" * 100_000
    lab.send("wait", "k", tag=tag)
    lab.wait_for_line(2, "wait", "k")
    lab.doors.config_resetstat()
    lab.open("holder")
    lab.journal.wait_for("end", tag=tag)
    assert published(lab) == 2, "the door, and the large one"


@pytest.mark.proves("not handed on")
def test_a_message_of_a_queue_that_the_worker_has_left_goes_to_the_broker(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(task_acks_late=True)
    worker = lab.start_worker("w1", 2, options=("-Q", "lab,side"))
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.send("wait", "k", tag="side", options={"queue": "side"})
    lab.wait_for_line(1, "wait", "k")
    stop_consuming(lab, worker, "side")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("side"), "the message in its queue")
    assert lab.journal.tags("start") == ["holder"]
    lab.start_worker("w2", 1, options=("-Q", "side"))
    lab.journal.wait_for("end", tag="side")


@pytest.mark.proves("not handed on")
def test_a_worker_that_stops_gives_the_next_message_to_the_others_at_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**acks, exclusive_offer=600)
    worker = lab.start_worker("w1", 2)
    line_up(lab, 1)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    lab.open("holder")
    assert worker.stop() == 0
    assert lab.doors.llen("lab") == 1
    lab.start_worker("w2", 2)
    lab.journal.wait_for("end", tag="0")
    assert lab.journal.tags("start") == ["holder", "0"]


@pytest.mark.proves("handed on like any other")
@needs_celery("5.5", "a cold shutdown that gives back what it cuts off")
def test_messages_that_a_worker_in_cold_shutdown_had_handed_on_are_redelivered(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=RELAY, task_acks_late=True, exclusive_offer=600)
    worker = lab.start_worker("w1", 2)
    line_up(lab, 1, "requeue", hold=True)
    lab.open("holder")
    lab.journal.wait_for("start", tag="0")
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(60)
    lab.open("0", "0")
    lab.start_worker("w2", 1)
    lab.journal.wait_for("redelivered", tag="0")
    lab.journal.wait_for("end", tag="0")


@pytest.mark.proves("handed on")
@of_fast_part
@RABBITS[0]
def test_a_line_goes_on_in_a_worker_while_its_broker_blocks_publishers(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any]
) -> None:
    lab = make_rabbit_lab(queue_type, task_acks_late=False)
    lab.start_worker("w1", 2)
    line_up(lab, 3)
    with memory_alarm(rabbit_server):
        lab.open("holder")
        lab.journal.wait_for("end", 4, timeout=DEADLINE)
    assert lab.journal.tags("start") == ["holder", "0", "1", "2"]
