"""celery-singleton in short: the call locks a key, without timeout, which success and failure delete."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.utils import uuid

from celery_exclusive.compat.singleton import Singleton as OurSingleton
from tests.compat.shop import act, app, doors

__all__ = ["app"]


class Singleton(Task):
    abstract = True

    def lock_of(self, args: Any) -> str:
        return f"SINGLETONLOCK_{self.name}_{args[0]}"

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any) -> Any:
        task_id = task_id or uuid()
        if doors.set(self.lock_of(args), task_id, nx=True):
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        return self.AsyncResult(doors.get(self.lock_of(args)).decode())

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        doors.delete(self.lock_of(args))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        doors.delete(self.lock_of(args))


@app.task(bind=True, shared=False, base=Singleton)
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=OurSingleton, unique_on="key")
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
