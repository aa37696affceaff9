"""Tasks whose ends publish others, and tasks whose keys cannot be made of every argument."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Task, group

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, journal, noted, task

__all__ = ["app"]

TOO_MANY = list(range(6000))
"""More values than a key takes."""
ORDERED = Exclusive(key="ordered:{key}", order="published")
UNIQUE = Unique(key="unique:{key}")


# Parents: what they publish comes at their end


@task()
def plain(self: Task, tag: str, result: Any = None, hold: bool = False) -> Any:
    act(self, "", tag, hold=hold)
    return result


@task(exclusive=Exclusive(key="locked:{tag}"))
def locked(self: Task, tag: str, result: Any = None, hold: bool = False) -> Any:
    act(self, "", tag, hold=hold)
    return result


@task(exclusive=Exclusive(key="killed:{tag}"), acks_late=False)
def killed(self: Task, tag: str) -> None:
    """Its child dies, so that its end is published by the main process."""
    act(self, "", tag, hold=True)
    os.kill(os.getpid(), signal.SIGKILL)


@task(exclusive=Exclusive(key="failing:{tag}"))
def failing(self: Task, tag: str) -> None:
    act(self, "", tag)
    raise KeyError(tag)


# What they publish


@task(exclusive=ORDERED)
def ordered(self: Task, key: str, tag: str) -> str:
    act(self, key, tag)
    return tag


@task(unique=UNIQUE)
def unique(self: Task, key: str, tag: str) -> str:
    act(self, key, tag)
    return tag


@task(exclusive=ORDERED, max_retries=1)
def ordered_again(self: Task, key: str, tag: str) -> str:
    act(self, key, tag, hold=not self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=UNIQUE, max_retries=1)
def unique_again(self: Task, key: str, tag: str) -> str:
    act(self, key, tag, hold=not self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=UNIQUE)
def after(self: Task, of: Any, key: str) -> None:
    act(self, key, key)


# Those whose keys cannot be made


def no_key(*_: object) -> str:
    raise KeyError("no key")


@task(unique=Unique())
def process(self: Task, ids: Any) -> None:
    act(self, "", "process")


@task(exclusive=Exclusive("ids"))
def process_alone(self: Task, ids: Any) -> None:
    act(self, "", "process")


@task(unique=Unique(), exclusive=Exclusive(key="all", order="published"))
def process_in_order(self: Task, ids: Any) -> None:
    act(self, "", "process")


@task(unique=Unique(key=no_key))
def process_by_function(self: Task, ids: Any) -> None:
    act(self, "", "process")


@task(unique=Unique(), exclusive=Exclusive(), max_retries=1)
def grow(self: Task, ids: list[int]) -> None:
    act(self, "", "grow")
    raise self.retry(args=(TOO_MANY,), countdown=0)


@task(exclusive=Exclusive("tag"))
def swap(self: Task, tag: str, how: str) -> None:
    act(self, "", tag)
    bad = app.tasks[f"{__name__}.process"].s(TOO_MANY).on_error(alarm.s())
    raise self.replace({"one": bad, "several": group(bad, plain.si("beside"))}[how])


@app.task(shared=False)
def alarm(request: Any, error: Exception, traceback: Any) -> None:
    """Celery calls it, as an errback without `self`, where the task has failed."""
    journal.write("failed", of=request.task, error=f"{type(error).__name__}: {error}")


@task()
def inside(self: Task) -> None:
    """Publishes a plain call from inside its body."""
    try:
        process.delay(TOO_MANY)
    except ValueError as error:
        noted("refused", self, "", why=str(error))
