"""Tasks whose publishers and workers end at a request: see `crashes.seam`."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Task

from celery_exclusive import Debounce, Exclusive, Unique
from celery_exclusive.errors import LeaseLost, NoLease
from tests.worker.crashes.seam import Seam
from tests.worker.journal import Journal
from tests.worker.shop import CONF, app, doors, journal, task

__all__ = ["app"]

if name := CONF.get("crash_name"):
    Seam(name, CONF["crash_plan"], Journal(CONF["crash_record"]), doors).install()


def body(self: Task, key: str, tag: str = "", *, hold: bool = False) -> str:
    """Be on the record from start to end; after a pause ask whether the lease is still there."""
    request, own = self.request, self.request.exclusive
    message = {"id": request.id, "publish": own["id"], "promoted": own.get("promoted")}
    task = self.name.rpartition(".")[2]
    about = {**message, "task": task, "attempt": request.retries, "key": key, "tag": tag}
    journal.write("start", **about)
    began = time.monotonic()
    if hold:
        doors.blpop([f"door:{key}"], timeout=100)
    if time.monotonic() - began > CONF["exclusive_ttl"]:
        _check(self, about)
    journal.write("end", **about)
    return tag


def _check(self: Task, about: dict[str, Any]) -> None:
    try:
        self.lease.check()
    except NoLease:  # no option holds a lease while the body runs
        pass
    except LeaseLost:
        journal.write("lost", **about)


@task(exclusive=Exclusive("key", order="arrived"))
def alone(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold=hold)


@task(exclusive=Exclusive("key", order="published"))
def ordered(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold=hold)


@task(unique=Unique("key"), max_retries=1)
def once(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Is retried once."""
    body(self, key, tag, hold=hold)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=Unique("key"))
def revoked(self: Task, key: str, tag: str = "") -> str:
    return body(self, key, tag)


@task(unique=Debounce("key", wait=0.3, max_wait=3600))
def late(self: Task, key: str, tag: str = "") -> str:
    return body(self, key, tag)


@task()
def gather(self: Task, tags: list[str], key: str, tag: str = "") -> list[str]:
    """The body of a chord."""
    journal.write("gathered", id=self.request.id, key=key, tag=tag, tags=tags, pid=os.getpid())
    return tags
