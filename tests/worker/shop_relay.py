"""The shop, in a worker that is killed at one moment while it hands a message on, or of which a child is."""

from __future__ import annotations

import os
import signal
from typing import Any

import billiard.pool
from celery import Task
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import Reject

from celery_exclusive import Exclusive
from celery_exclusive.worker import relay
from celery_exclusive.worker.relay import Relay
from tests.worker.shop import CONF, act, app, doors, noted, task

__all__ = ["app"]
VICTIM = CONF.get("victim")
send, receive, deliver, on_ready = relay._send, Relay.receive, Relay._deliver, AsynPool.on_job_ready


def _die_once() -> None:
    if doors.set("dead", 1, nx=True):
        os.kill(os.getpid(), signal.SIGKILL)


def _send(wake: Any) -> bool:
    _die_once()
    return send(wake)


def _receive(self: Relay, *fields: Any) -> None:
    _die_once()
    receive(self, *fields)


def _deliver(self: Relay, wake: Any) -> bool:
    is_delivered = deliver(self, wake)
    _die_once()
    return is_delivered


def _on_ready(self: Any, job: int, i: int, result: Any, fd: int) -> None:
    """Stop the child that has ended a run, before it can acknowledge what it gets next."""
    os.kill(self._fileno_to_inq[fd].pid, signal.SIGSTOP)
    on_ready(self, job, i, result, fd)


if VICTIM == "child that sends":
    relay._send = _send
elif VICTIM == "worker that receives":
    Relay.receive = _receive  # type: ignore[method-assign]
elif VICTIM == "worker that has received":
    Relay._deliver = _deliver  # type: ignore[method-assign]
elif VICTIM == "child that has sent":
    AsynPool.on_job_ready = _on_ready
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = (
        1  # else it waits 30 s for a parent that reads no more
    )


@task(exclusive=Exclusive("key"))
def turn(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key"))
def requeue(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Asks once to be delivered again."""
    if self.request.delivery_info["redelivered"]:
        noted("redelivered", self, tag)
    act(self, key, tag, hold=hold)
    if not hold and doors.set(f"requeued:{tag}", 1, nx=True):
        raise Reject(requeue=True)
    return tag


@task(exclusive=Exclusive("key"))
def again(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Is retried once."""
    act(self, key, tag, hold=hold)
    if not hold and not self.request.retries:
        raise self.retry(countdown=0)
    return tag
