"""A decorator for periodic tasks whose option counts for the first run of a process only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Task

from celery_exclusive import Exclusive
from tests.compat.shop import LOCK_EXPIRE, act, app, doors, task

__all__ = ["app"]


def cron_task(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        @task(name=f"{__name__}.{function.__name__}")
        def run(self: Task, key: str, tag: str = "", hold: bool = False) -> Any:
            timeout = options.pop("lock_timeout", LOCK_EXPIRE)
            if doors.get(f"cron-{key}"):
                return None
            with doors.lock(f"cron-{key}", timeout=timeout):
                return function(self, key, tag, hold)

        return run

    return decorate


@cron_task(lock_timeout=7200)
def printed(self: Task, key: str, tag: str, hold: bool) -> str:
    return act(self, key, tag, hold=hold)


@task(exclusive=Exclusive("key", ttl=LOCK_EXPIRE, on_conflict="skip", skip_result=None))
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
