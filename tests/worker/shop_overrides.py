"""Tasks whose authors override what Celery lets them override: with super(), without it, and badly."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Task
from celery.exceptions import Reject

from celery_exclusive import Exclusive
from tests.worker.accepting import Accepting, wait_until_accepted
from tests.worker.journal import eventually
from tests.worker.shop import app, doors, journal, task

HOOKS = ("before_start", "on_success", "on_failure", "on_retry", "after_return", "__call__")
OF_REQUESTS = ("on_failure", "on_success", "on_timeout", "execute_using_pool")
WAYS = ("with super", "without super", "raising", "rejecting")


def override(base: type, name: str, way: str) -> type:
    """A subclass in which this method tells that it was called, and goes on in this way."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        journal.write("override", name=name, way=way)
        if way == "with super":
            return getattr(super(made, self), name)(*args, **kwargs)
        if way == "raising":
            raise RuntimeError(f"{name} is {way}")
        if way == "rejecting":
            raise Reject(f"{name} is {way}", requeue=False)
        return self.run(*args, **kwargs) if name == "__call__" else None

    made = type(base.__name__, (base,), {name: method, "abstract": True, "__module__": __name__})
    return made


def body(self: Any, key: str, how: str) -> Any:
    journal.write("start", id=self.request.id, key=key, tag=how)
    is_first = doors.incr(f"runs:{self.request.id}") == 1
    if how == "raise":
        raise KeyError("a key")
    if how == "retry" and is_first:
        raise self.retry(countdown=0)
    if how == "retry":  # which plain Celery publishes before it stores this: else it might come last
        eventually(lambda: self.AsyncResult(self.request.id).state != "PENDING", "the end of the first run")
    if how == "sleep":
        time.sleep(60)
    if how == "die" and is_first:
        wait_until_accepted(self)
        os.kill(os.getpid(), signal.SIGKILL)
    return "a result"


def twins(name: str, base: type, **options: Any) -> None:
    task(name=f"{__name__}.plain {name}", base=base, **options)(body)
    task(name=f"{__name__}.exclusive {name}", base=base, exclusive=Exclusive(key="{key}"), **options)(body)


for way in WAYS:
    for hook in HOOKS:
        twins(f"{hook} {way}", override(app.Task, hook, way))
    for method in OF_REQUESTS:
        its_request = override(Accepting, method, way)
        its_task = type("Task", (app.Task,), {"Request": its_request, "abstract": True})
        twins(f"Request.{method} {way}", its_task)
        twins(f"limited Request.{method} {way}", its_task, soft_time_limit=3)
        twins(f"cut Request.{method} {way}", its_task, time_limit=3)


@task(exclusive=Exclusive(key="{key}"))
def following(self: Task, key: str) -> None:
    journal.write("start", id=self.request.id, key=key, tag="following")
