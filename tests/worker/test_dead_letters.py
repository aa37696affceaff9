"""A message that is rejected, and comes back through RabbitMQ's dead-letter exchange after a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from tests.rabbit import RabbitServer
from tests.worker.lab import Lab
from tests.worker.stage import RABBITS
from tests.worker.test_rabbit import DEADLINE, LATE, wait_for_empty

pytestmark = RABBITS[1]
BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"}


@pytest.fixture
def lab(make_rabbit_lab: Callable[..., Lab], queue_type: dict[str, Any]) -> Lab:
    """What its queue rejects comes back after a tenth of a second."""
    lab = make_rabbit_lab({**queue_type, **BACK}, module="tests.worker.shop_again", **LATE)
    arguments = {
        "x-dead-letter-exchange": "lab",
        "x-dead-letter-routing-key": "lab",
        "x-message-ttl": 100,
    }
    with Connection(lab.url if lab.url.startswith("amqp") else lab.conf["broker_url"]) as connection:
        Queue("later", Exchange(""), "later", queue_arguments=arguments)(connection).declare()
    return lab


def lives(lab: Lab, tag: str) -> list[int]:
    return [event["number"] for event in lab.journal.events("life", tag=tag)]


@pytest.mark.promise(
    "A message that is rejected and returns through a dead-letter exchange is a new life of it, and its "
    "body sees its deaths",
    name="dead-lettered message",
    broke="explorer: under its old id; red before",
)
@pytest.mark.proves("not handed on")
def test_a_rejected_task_that_had_waited_comes_back_and_waits_again(
    lab: Lab, rabbit_server: RabbitServer
) -> None:
    lab.start_worker("w1", 2)
    lab.send("reject", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    rejected = lab.send("reject", "k", tag="rejected", lives=3)
    lab.wait_for_line(1, "reject", "k")
    second = lab.send("reject", "k", tag="second", hold=True)
    lab.wait_for_line(2, "reject", "k")
    lab.open("holder")
    lab.journal.wait_for("start", tag="second")
    lab.wait_until_in_line(rejected.id, "reject", "k")
    lab.open("second")
    assert second.get(timeout=DEADLINE) == "second"
    lab.journal.wait_for("life", tag="rejected", number=3)
    wait_for_empty(rabbit_server, lab)
    assert lives(lab, "rejected") == [1, 2, 3]
    assert lab.journal.most_open(key="k") == 1
    assert lab.waiting("reject", "k") == 0


@pytest.mark.proves("dead-lettered message")
def test_a_rejected_task_that_had_not_waited_comes_back(lab: Lab, rabbit_server: RabbitServer) -> None:
    lab.start_worker("w1", 2)
    lab.send("reject", "k", tag="rejected", lives=3)
    lab.journal.wait_for("life", tag="rejected", number=3)
    wait_for_empty(rabbit_server, lab)
    assert lives(lab, "rejected") == [1, 2, 3]
