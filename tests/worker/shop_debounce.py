"""Tasks whose calls wait in a window."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Debounce, Exclusive
from tests.worker.shop import CONF, act, app, journal, task

__all__ = ["app", "call", "journal"]
LONG = 3600
"""Seconds for which a window stays open: longer than any test lasts."""


def body(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(unique=Debounce("key", wait=0.3, max_wait=LONG))
def soon(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=5, max_wait=5, leading=True))
def leading(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=5, max_wait=5))
def bounded(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=LONG, max_wait=LONG))
def late(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=0.3, max_wait=LONG), exclusive=Exclusive("key"))
def both(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=0.3, max_wait=LONG), exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=0.3, max_wait=LONG), exclusive=Exclusive("key", on_conflict="latest"))
def latest(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Debounce("key", wait=0.3, max_wait=LONG), max_retries=1)
def again(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=None if CONF.get("is_other_release") else Debounce("key", wait=0.3, max_wait=LONG))
def new(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task()
def seen(self: Task, found: object, tag: str = "") -> object:
    """The next step of a canvas."""
    journal.write("seen", id=self.request.id, tag=tag, found=found)
    return found


def call(name: str, key: str, tag: str, **options: object) -> str:
    """Call a task, with the begin and the end of the call on the record; return the id of its window."""
    journal.write("call", tag=tag)
    result = app.tasks[f"{__name__}.{name}"].apply_async((key, tag), **options)
    window = result.existing_id or result.id
    journal.write("called", tag=tag, window=window)
    return str(window)
