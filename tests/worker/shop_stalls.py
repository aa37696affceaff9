"""Tasks that are published while their broker, which is their store, stands still."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(unique=Unique("key"))
def once(
    self: Task, so_far: Any = None, *, key: str, tag: str, hold: bool = False, seconds: float = 0
) -> str:
    act(self, key, tag, hold=hold, seconds=seconds)
    return tag


@task(exclusive=Exclusive("key"))
def one_by_one(self: Task, *, key: str, tag: str) -> str:
    act(self, key, tag)
    return tag
