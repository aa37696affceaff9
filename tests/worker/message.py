"""One message in a test's hands: withheld before a worker sees it, delivered, and delivered again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.worker.lab import Lab, Worker, eventually


@dataclass(frozen=True)
class Message:
    """A message on a Redis broker, as kombu wrote it.

    message = Message.withheld(lab, "wait", "k", tag="a")      # before any worker runs
    message.deliver()
    message.deliver_again()
    """

    lab: Lab
    content: dict[str, Any]

    @classmethod
    def withheld(cls, lab: Lab, name: str, *args: Any, **kwargs: Any) -> Message:
        """Publish a task while nobody consumes its queue, and take the message out."""
        id = lab.send(name, *args, **kwargs).id
        for queue in lab.doors.scan_iter(_type="list"):
            for text in lab.doors.lrange(queue, 0, -1):
                message = cls(lab, json.loads(text))
                if message.id == id:
                    lab.doors.lrem(queue, 1, text)
                    return message
        raise AssertionError(f"the message of {name} is in no queue")

    @classmethod
    def unacknowledged(cls, lab: Lab, id: str) -> Message:
        """The one that a worker has now and has not acknowledged."""

        def look() -> list[Message]:
            messages = [cls(lab, json.loads(text)[0]) for text in lab.doors.hvals("unacked")]
            return [message for message in messages if message.id == id]

        eventually(lambda: len(look()) == 1, "one message: that of its wait in line is acknowledged")
        return look()[0]

    @property
    def id(self) -> str:
        return str(self.content["headers"]["id"])

    @property
    def queue(self) -> str:
        return str(self.content["properties"]["delivery_info"]["routing_key"])

    @property
    def result(self) -> Any:
        return self.lab.app.AsyncResult(self.id)

    @property
    def stored_result(self) -> bytes | None:
        """All that the result backend has of it, byte by byte."""
        return self.lab.doors.get(f"celery-task-meta-{self.id}")

    def deliver(self) -> None:
        """Publish it as it was."""
        self.lab.doors.lpush(self.queue, json.dumps(self.content))

    def deliver_again(self, *, last: bool = False) -> None:
        """Give it back to its queue as kombu does with what was not acknowledged: to be consumed next.

        `last` puts it behind what is in the queue.
        """
        tag = self.content["properties"]["delivery_tag"]
        self.lab.doors.hdel("unacked", tag)
        self.lab.doors.zrem("unacked_index", tag)
        copy = json.loads(json.dumps(self.content))
        copy["headers"]["redelivered"] = True
        copy["properties"]["delivery_info"]["redelivered"] = True
        push = self.lab.doors.lpush if last else self.lab.doors.rpush
        push(self.queue, json.dumps(copy))


def wait_for_lines(text: str, count: int, *workers: Worker, timeout: float = 60) -> None:
    """Wait until these workers have said it so many times, together."""
    eventually(
        lambda: sum(worker.log.count(text) for worker in workers) >= count, f"{count} x {text!r}", timeout
    )


def stop_consuming(lab: Lab, worker: Worker, queue: str) -> None:
    """Let a worker go on without this queue."""
    said = f"Canceling queue {queue}"
    before = worker.log.count(said)
    _control(worker, lab.app.control.cancel_consumer, queue)
    eventually(lambda: worker.log.count(said) > before, said)  # it answers first
    since = time.monotonic()

    def is_over() -> bool:
        """Whether what kombu has asked for before is answered: it would get, and flag, one message more."""
        clients = lab.doors.client_list()
        asking = [client for client in clients if client["cmd"] == "brpop" and "b" in client["flags"]]
        return all(int(client["idle"]) + 1 < time.monotonic() - since for client in asking)

    eventually(is_over, f"{worker.name} to leave {queue}")


def park_behind(id: str, lab: Lab, worker: Worker) -> None:
    """Deliver the message of a running task again, to this worker, which parks it behind its run."""
    Message.unacknowledged(lab, id).deliver_again()
    worker.wait_for_log(f"[{id}] parked: behind its own run")


def consume(lab: Lab, worker: Worker, queue: str) -> None:
    """Let a worker take messages of this queue too."""
    _control(worker, lab.app.control.add_consumer, queue)


def _control(worker: Worker, command: Callable[..., Any], queue: str) -> None:
    worker.wait_for_commands()
    replies = command(queue, destination=[worker.name], reply=True, timeout=60, limit=1)
    assert [worker.name] == [name for reply in replies for name in reply if "ok" in reply[name]]
