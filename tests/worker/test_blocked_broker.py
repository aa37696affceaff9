"""A broker that blocks those who publish: what has ended is reported all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.rabbit import RabbitServer
from tests.worker.lab import Lab
from tests.worker.stage import RABBITS
from tests.worker.test_rabbit import DEADLINE, LATE, wait_for_empty

pytestmark = RABBITS[0]


@contextmanager
def memory_alarm(server: RabbitServer) -> Iterator[None]:
    """Meanwhile RabbitMQ reads nothing more from connections that publish."""
    server.tell("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})")
    try:
        yield
    finally:
        server.tell("rabbit_alarm:clear_alarm({resource_limit, memory, node()})")


@pytest.mark.proves("woken messages are published")
def test_a_body_that_ends_while_publishers_are_blocked_is_reported_before_its_hard_limit_strikes(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any]
) -> None:
    lab = make_rabbit_lab(queue_type, **LATE)
    worker = lab.start_worker("w1", 2)
    holder = lab.send("wait", "k", tag="holder", hold=True, options={"time_limit": 20})
    lab.journal.wait_for("start", tag="holder")
    following = lab.send("wait", "k", tag="next")
    lab.wait_for_line(1, "wait", "k")
    with memory_alarm(rabbit_server):
        lab.open("holder")
        wait_for_empty(rabbit_server, lab)  # its message is acknowledged when the worker has its result
    assert [result.get(timeout=DEADLINE) for result in (holder, following)] == ["holder", "next"]
    wait_for_empty(rabbit_server, lab)
    assert lab.journal.tags("start") == ["holder", "next"]
    assert "Hard time limit" not in worker.log
