"""Tasks for a store without lines: none of them waits."""

from __future__ import annotations

import json
import os
from collections import deque

from celery import Task
from django.conf import settings

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task, three, wait

__all__ = ["app"]

if "DJANGO_CACHES" in os.environ and not settings.configured:
    settings.configure(CACHES=json.loads(os.environ["DJANGO_CACHES"]))

app._pending = deque(pending for pending in app._pending if pending is not wait and pending is not three)


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", on_conflict="raise"))
def strict(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", on_conflict="reschedule"))
def later(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", on_conflict="reschedule", keep_on_retry=True))
def kept(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Its first attempt is retried."""
    act(self, key, tag, hold=hold)
    if not self.request.retries:
        raise self.retry(countdown=3)
    return tag


@task(unique=Unique("key"))
def once(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
