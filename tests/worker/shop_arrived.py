"""The shop's tasks with `order="arrived"`, for tests of how a worker parks messages."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, task

__all__ = ["app"]

OPTIONS: dict[str, dict[str, Any]] = {
    "wait": {"exclusive": Exclusive("key", order="arrived")},
    "three": {"exclusive": Exclusive("key", order="arrived", limit=3)},
    "skip": {"exclusive": Exclusive("key", on_conflict="skip")},
}


def body(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, key, tag, hold=hold, seconds=seconds)
    return tag


for name, options in OPTIONS.items():
    task(name=f"{__name__}.{name}", **options)(body)


@task()
def plain(self: Task, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    act(self, "", tag, hold=hold, seconds=seconds)
    return tag
