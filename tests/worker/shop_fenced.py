"""Tasks of the shop that write to something which compares fences."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from celery_exclusive.errors import LeaseLost, NoLease
from tests.worker.shop import app, doors, journal, noted, task

__all__ = ["app"]
WRITE = """
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'tag', ARGV[2])
return 1
"""


def write(self: Task, key: str, tag: str, *, hold: bool, check: bool) -> str:
    fence = self.lease.fence
    journal.write("start", task=self.name, id=self.request.id, key=key, tag=tag, fence=fence)
    if hold:
        doors.blpop([f"door:{tag}"], timeout=100)
    try:
        if check:
            self.lease.check()
        is_written = doors.eval(WRITE, 1, f"resource:{key}", fence, tag)
        noted("written" if is_written else "refused", self, tag)
    except LeaseLost as error:
        noted("lost", self, tag, error=str(error))
        raise
    finally:
        journal.write("end", task=self.name, id=self.request.id, key=key, tag=tag, fence=fence)
    return tag


@task(exclusive=Exclusive("key", order="arrived"))
def save(self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False) -> str:
    return write(self, key, tag, hold=hold, check=check)


@task(unique=Unique("key"))
def save_once(self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False) -> str:
    return write(self, key, tag, hold=hold, check=check)


@task(unique=Unique("key"))
def save_twice(self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False) -> str:
    """Its first attempt is retried."""
    write(self, key, tag, hold=hold, check=check)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=Unique("key"), exclusive=Exclusive("key", order="arrived"))
def save_both(self: Task, key: str, tag: str = "") -> str:
    noted("lease", self, tag, key=self.lease.key)
    return tag


def leaseless(self: Task, tag: str) -> None:
    try:
        self.lease  # noqa: B018
    except NoLease as error:
        noted("no lease", self, tag, error=str(error))


@task(unique=Unique("key", until="started"))
def started(self: Task, key: str, tag: str = "") -> None:
    leaseless(self, tag)


@task(unique=Unique("key", period=600))
def seldom(self: Task, key: str, tag: str = "") -> None:
    leaseless(self, tag)


def checks_late(self: Task, *_: object) -> None:
    """Check the lease when the body has ended."""
    try:
        self.lease.check()
    except LeaseLost as error:
        noted("over", self, "", error=str(error))


@task(unique=Unique("key"), on_success=checks_late)
def late(self: Task, key: str, tag: str = "") -> str:
    self.lease.check()
    return tag
