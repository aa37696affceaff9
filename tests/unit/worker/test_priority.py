"""Which messages no other of their queue goes before. The lists of Redis are in worker/test_priorities.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue

from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.worker.relay import has_highest_priority

pytestmark = pytest.mark.proves("head of its priority")


@pytest.fixture
def channel() -> Iterator[Any]:
    with Connection("memory://") as connection:
        yield connection.default_channel


def highest(channel: Any, queue: Queue) -> list[int | None]:
    """Return which of these priorities is the highest in this queue; None: a message without a priority."""
    consumer = Consumer(channel, [Queue("other", max_priority=1), queue], auto_declare=False)
    return [
        priority
        for priority in (None, 0, 4, 9, 255)
        if has_highest_priority(
            StoredMessage(
                b"", "", "", {}, {} if priority is None else {"priority": priority}, "", queue.name
            ),
            consumer,
        )
    ]


def test_in_a_queue_without_priorities_no_message_goes_before_another(channel: Any) -> None:
    assert highest(channel, Queue("q")) == [None, 0, 4, 9, 255]
    assert highest(channel, Queue("q", queue_arguments={"x-queue-type": "quorum"})) == [None, 0, 4, 9, 255]


def test_a_queue_is_declared_with_its_highest_priority_in_three_ways(channel: Any) -> None:
    with Celery(set_as_current=False) as app:
        app.conf.task_queue_max_priority = 9
        for queue in (
            Queue("q", max_priority=9),
            Queue("q", queue_arguments={"x-max-priority": 9}),
            app.amqp.queues["q"],
        ):
            assert highest(channel, queue) == [9, 255]


def test_a_queue_that_others_declare_may_have_any_priority(channel: Any) -> None:
    assert highest(channel, Queue("q", no_declare=True)) == [255]
