"""The app that the tests' workers run: tasks that tell when they begin and end, and stay open on demand.

All it knows comes from the environment that `lab.Lab` makes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import redis
from celery import Celery, Task

from celery_exclusive import Exclusive, install
from tests.worker.journal import Journal

if stacks := os.environ.get("LAB_STACKS"):
    faulthandler.register(signal.SIGUSR2, Path(stacks).open("a"))  # noqa: SIM115 - while it lives
CONF = json.loads(os.environ["LAB_CONF"])
app = install(Celery("shop"))
app.conf.update(CONF)
# Not shared: a test process makes this app anew for each test.
task = partial(app.task, bind=True, shared=False)
journal = Journal(os.environ["LAB_JOURNAL"])
# redis-py 8 gives up after 5 s; who waits at a door, or is paused, does not.
doors = redis.Redis.from_url(os.environ["LAB_DOORS"], socket_timeout=None)


def act(task: Task, key: str, tag: str, *, hold: bool = False, seconds: float = 0) -> None:
    """One body: on the record from start to end. `hold` keeps it open until the test opens the tag's door."""
    fence = task.lease.fence if getattr(task, "exclusive", None) else None
    journal.write("start", task=task.name, id=task.request.id, key=key, tag=tag, fence=fence)
    if hold:
        doors.blpop([f"door:{tag}"], timeout=100)
    time.sleep(seconds)
    journal.write("end", task=task.name, id=task.request.id, key=key, tag=tag, fence=fence)


@task(exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, key, tag, hold=hold, seconds=seconds)
    return tag


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, key, tag, hold=hold, seconds=seconds)
    return tag


@task(exclusive=Exclusive("key", limit=3))
def three(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, key, tag, hold=hold, seconds=seconds)
    return tag


@task()
def plain(self: Task, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, "", tag, hold=hold, seconds=seconds)
    return tag


def noted(what: str, task: Task, tag: str, **more: Any) -> None:
    """Put something else that a body saw on the record."""
    journal.write(what, task=task.name, id=task.request.id, tag=tag, **more)
