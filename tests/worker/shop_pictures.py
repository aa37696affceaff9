"""The tasks of the pictures in docs/pictures, with the outcomes of their locks on the record."""

from __future__ import annotations

import time

from celery import Task

from celery_exclusive import Debounce, Exclusive, Unique
from celery_exclusive.signals import LockOutcome, lock_outcome
from tests.worker.shop import act, app, doors, journal, noted, task

__all__ = ["app"]


@lock_outcome.connect
def note(outcome: LockOutcome, **_: object) -> None:
    journal.write("outcome", kind=outcome.kind, task=outcome.task_name, id=outcome.task_id)


@task(exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str, seconds: float) -> None:
    act(self, key, tag, seconds=seconds)


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str, seconds: float) -> None:
    act(self, key, tag, seconds=seconds)


@task(exclusive=Exclusive("key", on_conflict="latest"))
def latest(self: Task, key: str, tag: str, seconds: float) -> None:
    act(self, key, tag, seconds=seconds)


@task(exclusive=Exclusive("key", on_conflict="supersede"))
def supersede(self: Task, key: str, tag: str, seconds: float) -> None:
    """Look for a newer call when the last one was made."""
    noted("start", self, tag)
    doors.blpop([f"door:{tag}"], timeout=100)
    self.lease.check()
    time.sleep(seconds)
    noted("end", self, tag)


@task(unique=Unique("key"))
def unique(self: Task, key: str, tag: str, seconds: float) -> None:
    act(self, key, tag, seconds=seconds)


@task(unique=Unique("key"))
def generate(self: Task, key: str, tag: str, seconds: float) -> str:
    act(self, key, tag, seconds=seconds)
    return f"file of {tag}"


@task(unique=Unique("key"))
def send(self: Task, file: str, key: str, tag: str, seconds: float) -> str:
    act(self, key, tag, seconds=seconds)
    return file


@task(unique=Debounce("key", wait=2, max_wait=60))
def debounce(self: Task, key: str, tag: str, seconds: float) -> None:
    act(self, key, tag, seconds=seconds)
