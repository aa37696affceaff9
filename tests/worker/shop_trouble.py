"""Tasks that run while the store of their locks is in trouble."""

from __future__ import annotations

import time

from celery import Task

from celery_exclusive import Exclusive, LeaseLost
from celery_exclusive.leases.lease import Lease
from tests.worker.shop import act, app, doors, noted, task

__all__ = ["app"]


@task(exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return tag


@task(exclusive=Exclusive("key", ttl=600))
def patient(
    self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False, fail: bool = False
) -> str:
    """Its lease lasts longer than any trouble."""
    act(self, key, tag, hold=hold)
    if check:
        self.lease.check()
    if fail:
        raise KeyError(tag)
    return tag


@task(exclusive=Exclusive("key", limit=3, ttl=600))
def three(self: Task, key: str, tag: str = "", hold: bool = False, check: bool = False) -> str:
    act(self, key, tag, hold=hold)
    if check:
        self.lease.check()
    return tag


@task(exclusive=Exclusive("key"))
def watch(self: Task, key: str, tag: str = "", hold: bool = False, until_lost: bool = False) -> str:
    """May check its lease until that is lost, and once more when its door is opened."""
    if not until_lost:
        act(self, key, tag, hold=hold)
        return tag
    noted("start", self, tag, key=key, fence=self.lease.fence)
    noted("lost", self, tag, why=loss(self.lease))
    doors.blpop([f"door:{tag}"], timeout=100)
    noted("lost again", self, tag, why=loss(self.lease))
    noted("end", self, tag, key=key)
    return tag


@task(exclusive=Exclusive("key", ttl=600))
def asked(self: Task, key: str, tag: str = "") -> None:
    """Check the lease when the door is opened, and end when it is opened again."""
    noted("start", self, tag, key=key)
    doors.blpop([f"door:{tag}"], timeout=100)
    try:
        self.lease.check()
    except LeaseLost:
        noted("lost", self, tag)
    else:
        noted("stands", self, tag)
    doors.blpop([f"door:{tag}"], timeout=100)
    noted("end", self, tag, key=key)


def loss(lease: Lease) -> str:
    """Check a lease until it is lost; return why."""
    try:
        while True:
            lease.check()
            time.sleep(0.02)
    except LeaseLost as lost:
        return str(lost)
