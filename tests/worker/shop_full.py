"""Tasks whose lines may be full, and periodic ones."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.journal import eventually
from tests.worker.shop import act, app, task

ONE_WAITS = Exclusive("key", max_waiting=1)


class Lingering(app.Task):  # type: ignore[name-defined, misc]
    """After a body with `linger=2`, its lease ends only when two are in line."""

    abstract = True

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        waiting = kwargs.get("linger", 0)
        eventually(lambda: self.lock_state(kwargs["key"]).waiting >= waiting, f"{waiting} in line", 30)


@task(exclusive=ONE_WAITS, base=Lingering)
def loud(self: Task, key: str, tag: str = "", hold: bool = False, linger: int = 0) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=ONE_WAITS.replace(on_full="skip"))
def quiet(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key"))
def by_setting(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=ONE_WAITS, max_retries=3)
def again(self: Task, key: str, tag: str = "", hold: bool = False) -> int:
    act(self, key, f"{tag}{self.request.retries}", hold=hold and not self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.retries


@task()
def collect(self: Task, results: Any) -> Any:
    act(self, "", "collected")
    return results


# Periodic ones: the two options of docs/how-to/periodic.md


@task(exclusive=Exclusive(on_conflict="skip"))
def one_runs(self: Task, tag: str = "one") -> None:
    act(self, "one", tag, hold=True)


@task(exclusive=Exclusive(max_waiting=1, on_full="skip"))
def one_runs_and_one_waits(self: Task, tag: str = "two") -> None:
    act(self, "two", tag, hold=True)
