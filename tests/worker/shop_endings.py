"""A task of the shop that ends as it is told, and one with a ttl of its own."""

from __future__ import annotations

from celery import Task
from celery.exceptions import Ignore, Reject

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, journal, task

__all__ = ["app"]


@task(exclusive=Exclusive("key"))
def end(self: Task, key: str, tag: str = "", how: str = "", hold: bool = False) -> str:
    is_first = not journal.events("start", id=self.request.id)
    act(self, key, tag, hold=hold)
    if how == "raise":
        raise KeyError(tag)
    if how == "ignore":
        raise Ignore
    if how == "reject" or (how == "requeue" and is_first):
        raise Reject(tag, requeue=how == "requeue")
    return tag


@task(exclusive=Exclusive("key", ttl=1))
def brief(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
