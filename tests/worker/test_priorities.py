"""Priorities: a task that leaves a line goes before nothing that its broker would deliver first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu.utils.json import loads

from celery_exclusive.messages.header import HEADER
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from tests.rabbit import RabbitServer
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.stage import RABBITS
from tests.worker.test_handing_on import line_up, published
from tests.worker.test_one_call import lists
from tests.worker.versions import of_fast_part

BULK, URGENT = 3, 6
EXPECTED = [*(f"urgent{number}" for number in range(URGENT)), *(f"bulk{number}" for number in range(BULK))]
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
STEPS = {"priority_steps": list(range(10)), "sep": ":"}


def fill(lab: Lab, bulk: str, *, lowest: int, highest: int, padding: str = "") -> None:
    """Hold both slots of a worker, one of them by a bulk task, and let bulk and urgent tasks wait."""
    waits_in_line = bulk == "wait"
    key = ["k"] if waits_in_line else []
    low, high = {"priority": lowest}, {"priority": highest}

    def hold(name: str, *args: str, tag: str, **options: Any) -> None:
        lab.send(name, *args, tag=tag, hold=True, **options)
        lab.journal.wait_for("start", tag=tag)

    hold(bulk, *key, tag="holder", options=low)
    if not waits_in_line:
        hold("plain", tag="busy", options=high)
    for number in range(BULK):
        lab.send(bulk, *key, tag=f"bulk{number}{padding}", options=low)
    if waits_in_line:
        lab.wait_for_line(BULK, bulk, *key)
        hold("plain", tag="busy", options=high)
    for number in range(URGENT):
        lab.send("plain", tag=f"urgent{number}", options=high)


def starts(lab: Lab) -> list[str]:
    """Let the bulk task end; return the tags of the others in the order in which they began in its slot."""
    lab.open("holder")
    lab.journal.wait_for("end", 1 + BULK + URGENT)
    lab.open("busy")
    return [tag.rstrip("x") for tag in lab.journal.tags("start") if tag not in ("holder", "busy")]


@pytest.mark.promise(
    "Bulk tasks of the lowest priority that leave a line run after all urgent tasks of the queue, as "
    "without the library: on Redis with both orders of queues, handed on, too large for that, in threads; "
    "on RabbitMQ with late and early acknowledgement",
    name="priority",
    broke="red before; the control without the library was not",
)
@pytest.mark.parametrize("options", [{}, {**STEPS, "queue_order_strategy": "priority"}], ids=["steps", "ten"])
@pytest.mark.parametrize(
    ("bulk", "pool", "padding"),
    [
        ("plain", "prefork", ""),
        ("wait", "prefork", ""),
        pytest.param("wait", "prefork", "x" * 100_000, id="wait-prefork-large"),
        ("wait", "threads", ""),
    ],
)
def test_on_redis_no_bulk_task_of_a_line_runs_before_the_urgent_ones_that_are_queued(
    make_lab: Callable[..., Lab], options: dict[str, Any], bulk: str, pool: str, padding: str
) -> None:
    transport = {"visibility_timeout": 600, **options}
    lab = make_lab(broker_transport_options=transport, worker_prefetch_multiplier=1, **LATE)
    lab.start_worker("w1", 2, pool=pool)
    fill(lab, bulk, lowest=9, highest=0, padding=padding)
    assert starts(lab) == EXPECTED


@pytest.mark.proves("priority")
@RABBITS[0]
@pytest.mark.parametrize(("bulk", "late"), [("plain", True), ("wait", True), ("wait", False)])
def test_on_rabbitmq_no_bulk_task_of_a_line_runs_before_the_urgent_ones_that_are_queued(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, bulk: str, late: bool
) -> None:
    acks = LATE if late else {}
    lab = make_rabbit_lab({"x-max-priority": 9}, worker_prefetch_multiplier=1, **acks)
    lab.start_worker("w1", 2)
    fill(lab, bulk, lowest=0, highest=5)
    running, in_queue = 2 if late else 0, BULK if bulk == "plain" else 0
    url = lab.conf["broker_url"]
    eventually(lambda: rabbit_server.messages(url, "lab") == running + in_queue + URGENT, "all in the queue")
    assert starts(lab) == EXPECTED


@pytest.mark.proves("head of its priority")
@of_fast_part
@pytest.mark.parametrize(("priority", "through_broker"), [(0, 0), (2, 0), (3, 1), (9, 1)])
def test_a_worker_hands_on_only_what_no_other_priority_goes_before(
    make_lab: Callable[..., Lab], priority: int, through_broker: int
) -> None:
    lab = make_lab(**LATE, task_ignore_result=True)
    lab.start_worker("w1", 2)
    line_up(lab, 3, options={"priority": priority})
    lab.doors.config_resetstat()
    lab.open("holder")
    lab.journal.wait_for("end", 4)
    assert published(lab) == 1 + 3 * through_broker, "the door, and what went through the broker"
    assert lab.journal.tags("start") == ["holder", "0", "1", "2"]


@pytest.mark.promise(
    "A message that leaves a line goes to the head of the list that kombu has for its priority; a worker "
    "hands on only messages that no priority goes before",
    name="head of its priority",
    broke="red before; every queue is taken for one without priorities",
)
@of_fast_part
@pytest.mark.parametrize("priority", [None, 0, 1, 4, 9, 12, -1])
@pytest.mark.parametrize(
    "options", [{}, STEPS, {"priority_steps": [2, 5]}, {"global_keyprefix": "b:"}], ids=str
)
def test_a_message_that_leaves_a_line_goes_to_the_head_of_kombu_s_list_for_its_priority(
    make_lab: Callable[..., Lab], redis_server: RedisServer, options: dict[str, Any], priority: int | None
) -> None:
    lab = make_lab(broker_transport_options=options)
    for _ in range(2):
        lab.send("plain", options={"priority": priority})
    properties = {} if priority is None else {"priority": priority}
    stored = StoredMessage(b"[]", "application/json", "utf-8", {HEADER: {}}, properties, "", "lab")
    Republisher(lab.app).publish(stored, at_head=True)
    (queued,) = lists(redis_server).values()
    assert [HEADER in loads(message)["headers"] for message in queued] == [False, False, True]
