"""Tasks with rates, whose processes die between grant and body when the test asks for it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Task
from celery.signals import task_prerun

from celery_exclusive import Exclusive
from tests.worker.shop import app, doors, journal, task  # noqa: F401 - its workers run the app


@task_prerun.connect(weak=False)
def die(task: Task, **_: Any) -> None:
    """With the lease, and before the body: the child dies, or its worker, if the test has sent this word."""
    if word := doors.lpop("deaths"):
        journal.write("killed", task=task.name, how=word.decode(), fence=task.lease.fence)
        os.kill(os.getpid() if word == b"child" else 0, signal.SIGKILL)  # 0: the worker with its children


def begin(task: Task) -> None:
    journal.write("start", task=task.name, fence=task.lease.fence, begun=time.time_ns() // 1000)


@task(exclusive=Exclusive("key", limit=None, rate="20/s"))
def by_second(self: Task, key: str) -> None:
    begin(self)


@task(exclusive=Exclusive("key", limit=None, rate=("5/s", "100/m")))
def by_minute(self: Task, key: str) -> None:
    begin(self)
