"""Tasks that start in an order of their own."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(exclusive=Exclusive("key", order="published"))
def ordered(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", order="published", limit=2))
def pair(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", order="published"), unique=Unique("tag", until="started"))
def both(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", order="published", on_store_error="allow"))
def allowed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", order="any"))
def whoever(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", order="published"), max_retries=1)
def again(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag
