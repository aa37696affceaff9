"""A list of calls that wait per tenant, of which each run that ends starts the next ones."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.compat.shop import act, app, doors, task

__all__ = ["app"]

LIMIT = 2


@task()
def printed(self: Task, tenant: str, tag: str = "", hold: bool = False) -> str:
    try:
        return act(self, tenant, tag, hold=hold)
    finally:
        waiting = doors.rpop(f"parked-{tenant}", LIMIT) or []
        for next_tag in waiting:
            self.delay(tenant, next_tag.decode(), hold)
        if not waiting:
            doors.delete(f"busy-{tenant}")


@task()
def park(self: Task, tenant: str, tag: str) -> None:
    """Start a call of `printed`, or let it wait."""
    if doors.set(f"busy-{tenant}", 1, nx=True, ex=3600):
        printed.delay(tenant, tag, hold=True)
    else:
        doors.lpush(f"parked-{tenant}", tag)


@task(exclusive=Exclusive("tenant", limit=LIMIT))
def ours(self: Task, tenant: str, tag: str = "", hold: bool = False) -> str:
    return act(self, tenant, tag, hold=hold)
