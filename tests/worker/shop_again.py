"""Tasks that come again: by a retry, or by another way than the broker's own redelivery."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.exceptions import Reject

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, journal, task

__all__ = ["app"]


def retried(self: Task, key: str, tag: str = "", retries: int = 0, hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    if self.request.retries < retries:
        raise self.retry(countdown=5)
    return tag


skip = task(name="skip", exclusive=Exclusive(key="again:{key}", on_conflict="skip"))(retried)
refuse = task(name="refuse", exclusive=Exclusive(key="again:{key}", on_conflict="raise"))(retried)


@task(exclusive=Exclusive("key", max_waiting=1, on_full="skip"))
def full(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive(key="again:{key}"))
def reject(self: Task, key: str, tag: str = "", lives: int = 1, hold: bool = False) -> str:
    """Give its message up until it has come through the dead-letter exchange so often."""
    act(self, key, tag, hold=hold)
    deaths: list[dict[str, Any]] = (self.request.headers or {}).get("x-death", [])
    count = sum(death["count"] for death in deaths if death["reason"] == "rejected")
    journal.write("life", tag=tag, number=count + 1)
    if count + 1 < lives:
        raise Reject
    return tag
