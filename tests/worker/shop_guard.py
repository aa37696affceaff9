"""Tasks that say what they do without the store of their locks."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, ExclusiveError
from tests.worker.shop import app, doors, noted, task

__all__ = ["app"]


def act(task: Task, key: str, tag: str, *, hold: bool) -> str:
    """One body; return what it is told of its lease."""
    try:
        told = f"fence {task.lease.fence}"
    except ExclusiveError as error:
        told = str(error)
    noted("start", task, tag, key=key)
    if hold:
        doors.blpop([f"door:{tag}"], timeout=100)
    noted("end", task, tag, key=key)
    return told


@task(exclusive=Exclusive(key="guard:{key}", on_store_error="allow"))
def allowed(self: Task, key: str, tag: str, hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="guard:{key}", on_store_error="allow", on_conflict="skip"))
def allowed_skip(self: Task, key: str, tag: str, hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="guard:{key}"))
def unsaid(self: Task, key: str, tag: str, hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="guard:{key}", on_store_error="raise"))
def refused(self: Task, key: str, tag: str, hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
