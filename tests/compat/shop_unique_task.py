"""A base class for tasks that are not run twice at the same time with the same arguments."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.exceptions import Ignore

from celery_exclusive.compat.unique_task import UniqueCeleryTask as OurUniqueCeleryTask
from tests.compat.shop import LOCK_EXPIRE, act, app, cache, task

__all__ = ["app"]


class UniqueCeleryTask(Task):
    abstract = True
    LOCK_EXPIRE = 600

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        expire = getattr(self, "custom_lock_expire", None) or self.LOCK_EXPIRE
        if not cache.add(self.generate_lock_id(*args, **kwargs), self.app.oid, expire):
            raise Ignore
        return self.run(*args, **kwargs)

    def generate_lock_id(self, *args: Any, **kwargs: Any) -> str:
        return "&".join([self.name, args[0]])

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, _: Any) -> None:
        self.release_lock(self.generate_lock_id(*args, **kwargs))

    def release_lock(self, lock_id: str) -> None:
        cache.delete(lock_id)


class ByKey(OurUniqueCeleryTask):
    """It chooses the arguments as people do who have the recipe."""

    abstract = True

    def generate_lock_id(self, *args: Any, **kwargs: Any) -> str:
        return "&".join([self.name, args[0]])


@app.task(bind=True, shared=False, base=UniqueCeleryTask, custom_lock_expire=LOCK_EXPIRE)
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=ByKey, custom_lock_expire=LOCK_EXPIRE)
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=UniqueCeleryTask)
def patient(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """As printed, with a lock that does not expire here."""
    return act(self, key, tag, hold=hold)


@task()
def total(self: Task, results: Any) -> int:
    return len(results)
