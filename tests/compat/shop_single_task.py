"""A base class for tasks that run one at a time."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive.compat.single_task import SingleTask as OurSingleTask
from tests.compat.shop import act, app, cache

__all__ = ["app"]


class SingleTask(Task):
    abstract = True
    TAG = ""
    single_run = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not cache.add(f"lock_{self.TAG.lower()}", 1, None):
            return False
        result = super().__call__(*args, **kwargs)
        self.release()
        return result

    def on_success(self, *_: Any) -> None:
        self.release()

    def on_failure(self, *_: Any) -> None:
        self.release()

    def release(self) -> None:
        cache.delete(f"lock_{self.TAG.lower()}")


@app.task(bind=True, shared=False, base=SingleTask, TAG="SYNC")
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=OurSingleTask, TAG="SYNC")
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
