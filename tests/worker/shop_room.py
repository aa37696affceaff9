"""Tasks with rates and costs, and bodies that hold their key back or charge it."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act, app, task  # noqa: F401 - its workers run the app


@task(exclusive=Exclusive("key", limit=None, rate="5/s"))
def quick(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> None:
    act(self, key, tag, hold=hold, seconds=seconds)


@task(exclusive=Exclusive(key="api:{key}", limit=None, rate="1/h", on_conflict="raise"))
def loud(self: Task, key: str, tag: str = "") -> None:
    act(self, key, tag)


@task(exclusive=Exclusive("key", limit=4, cost="units"))
def heavy(self: Task, key: str, units: int, tag: str = "", hold: bool = False) -> None:
    act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="fair:{key}", per="tenant"))
def fair(self: Task, key: str, tenant: str, tag: str = "", hold: bool = False) -> None:
    act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="ranked:{key}", per=Exclusive("priority", weight="priority")))
def ranked(self: Task, key: str, priority: int = 1, tag: str = "", hold: bool = False) -> None:
    act(self, key, tag, hold=hold)


@task(exclusive=Exclusive(key="shared:{key}", limit=6, per=Exclusive("tenant", limit=4)))
def shared(self: Task, key: str, tenant: str, tag: str = "", hold: bool = False, seconds: float = 0) -> None:
    act(self, tenant, tag, hold=hold, seconds=seconds)


@task(exclusive=Exclusive("key", limit=None, rate="100/d"))
def careful(
    self: Task, key: str, tag: str = "", held_for: float = 0, units: int = 0, hold: bool = False
) -> None:
    if held_for:
        self.lease.hold(held_for)
    if units:
        self.lease.charge(units)
    act(self, key, tag, hold=hold)
