"""Tasks of the shop that end as they are told, with a witness of every start."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject

from celery_exclusive import Exclusive
from tests.worker.accepting import Accepting, wait_until_accepted
from tests.worker.journal import is_alive
from tests.worker.shop import act, app, doors, journal, task

__all__ = ["app"]


@task(exclusive=Exclusive("key", ttl=12))
def brief(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


# --- endings that begin in the body ---


class Passing(Exception):
    """What autoretry_for is for."""


class Unusual(BaseException):
    """No Exception, as pytest's outcomes and some frameworks' exits are not."""


def throw(error: BaseException) -> NoReturn:
    raise error


def run_on(task: Task) -> None:
    """Catch what a hard time limit raises, and tell until SIGKILL that the body is alive."""
    while True:
        try:
            while True:
                journal.write("alive", id=task.request.id)
                time.sleep(0.01)
        except SystemExit:
            continue


def lock_twice() -> None:
    """Stay in C, with the interpreter's lock, in a call that no signal interrupts."""
    lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    lock(mutex)


WAYS: dict[str, Callable[[Task], Any]] = {
    "return": lambda task: None,
    "exception": lambda task: throw(KeyError("lost")),
    "retry": lambda task: task.retry(countdown=0),
    "retry-later": lambda task: task.retry(countdown=1),
    "retries-exhausted": lambda task: task.retry(countdown=0),
    "autoretry": lambda task: throw(Passing()),
    "ignore": lambda task: throw(Ignore()),
    "reject": lambda task: throw(Reject()),
    "reject-requeue": lambda task: throw(Reject(requeue=True)),
    "replace": lambda task: task.replace(task.si(*task.request.args, **task.request.kwargs)),
    "system-exit": lambda task: throw(SystemExit(1)),
    "keyboard-interrupt": lambda task: throw(KeyboardInterrupt()),
    "base-exception": lambda task: throw(Unusual()),
    "memory-error": lambda task: throw(MemoryError()),
    "child-exit": lambda task: (wait_until_accepted(task), os._exit(1)),
    "child-killed": lambda task: (wait_until_accepted(task), os.kill(os.getpid(), signal.SIGKILL)),
    "soft-limit": lambda task: time.sleep(100),
    "hard-limit": lambda task: time.sleep(100),
    "hard-limit-stubborn": run_on,
    "hard-limit-c": lambda task: lock_twice(),
}
"""By their names. Whatever runs a second time returns, except for retries until they are exhausted."""


@task(
    Request=Accepting,
    exclusive=Exclusive("key"),
    max_retries=1,
    autoretry_for=(Passing,),
    retry_kwargs={"countdown": 0},
)
def end(self: Task, key: str, tag: str = "", how: str = "return", hold: bool = False) -> None:
    witness(self, key, tag, how, hold=hold)


@task(exclusive=Exclusive("key"), rate_limit="2/s")
def limited(self: Task, key: str, tag: str = "", hold: bool = False) -> None:
    witness(self, key, tag, "return", hold=hold)


class Slow(app.Task):  # type: ignore[misc, name-defined]
    """Celery calls its hook in the main process before it kills a child that is over its hard limit."""

    abstract = True

    def on_failure(self, *_: Any) -> None:
        journal.write("hook")
        doors.blpop(["door:hook"], timeout=100)


@task(base=Slow, exclusive=Exclusive("key", ttl=12))
def slow(self: Task, key: str, tag: str = "", how: str = "return") -> None:
    witness(self, key, tag, how, hold=False)


def witness(task: Task, key: str, tag: str, how: str, *, hold: bool) -> None:
    is_first = not journal.events("start", id=task.request.id)
    words = {"id": task.request.id, "key": key, "tag": tag}
    journal.write("start", **words)
    if owners := bodies_inside(key, task.request.id):
        journal.write("beside", **words, owners=owners)
    try:
        if hold and is_first:
            doors.blpop([f"door:{key}"], timeout=100)
        journal.write("ends", **words)
        if is_first or how == "retries-exhausted":
            WAYS[how](task)
    finally:
        journal.write("end", **words)


def bodies_inside(key: str, id: str) -> list[str]:
    """Whose bodies of this key, other than one's own, have neither ended nor lost their process."""
    over = {(event["pid"], event["id"]) for event in journal.events("end", key=key)}
    starts = [event for event in journal.events("start", key=key) if event["id"] != id]
    return [e["tag"] for e in starts if (e["pid"], e["id"]) not in over and is_alive(e["pid"])]
