"""Which request gets the next slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_exclusive.seams.kombu_worker import replace_queue
from celery_exclusive.worker.relay import NoChannel, line_of
from celery_exclusive.worker.slots import Slots

pytestmark = pytest.mark.proves("handed on")


class Worker:
    """Gives its slots as Celery does: each request begins when it gets one."""

    def __init__(self, slots: int = 1) -> None:
        self.semaphore = LaxBoundedSemaphore(slots)
        replace_queue(self.semaphore, Slots(line_of))
        self.begun: list[str] = []

    def deliver(self, *names: str) -> None:
        self._receive(names, channel=None)

    def hand_on(self, name: str, line: int) -> None:
        self._receive([name], NoChannel(line, print))

    def end(self, times: int = 1) -> None:
        for _ in range(times):
            self.semaphore.release()

    def _receive(self, names: Any, channel: Any) -> None:
        for name in names:
            request = SimpleNamespace(name=name, message=SimpleNamespace(channel=channel))
            self.semaphore.acquire(lambda request: self.begun.append(request.name), request)


@pytest.fixture
def worker() -> Worker:
    """A worker whose slots are taken."""
    worker = Worker()
    worker.deliver("first")
    worker.begun.clear()
    return worker


def test_deliveries_alone_get_slots_as_they_come(worker: Worker) -> None:
    worker.deliver("x", "y", "z")
    worker.end(4)
    assert worker.begun == ["x", "y", "z"]
    assert worker.semaphore.value == 1


def test_handed_on_messages_and_deliveries_get_slots_in_turn(worker: Worker) -> None:
    worker.deliver("x", "y", "z")
    for name, line in (("short", 1), ("long", 9), ("middle", 5)):
        worker.hand_on(name, line)
    worker.end(6)
    assert worker.begun == ["long", "x", "middle", "y", "short", "z"]


def test_after_deliveries_alone_it_is_the_turn_of_what_is_handed_on(worker: Worker) -> None:
    worker.hand_on("a", 1)
    worker.deliver("x", "y")
    worker.end(2)
    worker.hand_on("b", 1)
    worker.end()
    assert worker.begun == ["a", "x", "b"]


def test_nothing_gets_a_slot_that_waited_when_celery_forgot_all(worker: Worker) -> None:
    worker.deliver("x")
    worker.hand_on("a", 1)
    worker.semaphore.clear()
    worker.end()
    assert not worker.begun
    assert "waiting:0" in repr(worker.semaphore)


def test_neither_long_lines_nor_many_deliveries_keep_a_request_from_its_turn(worker: Worker) -> None:
    """A long line goes on for ever, and one slot becomes free at a time."""
    worker.deliver("once", "x")
    worker.hand_on("short", 1)
    for _ in range(15):
        worker.hand_on("long", 99)
        worker.deliver("another")
        worker.end()
    assert {"once", "x", "short"} <= {*worker.begun}
    assert worker.begun.count("long") > 4
