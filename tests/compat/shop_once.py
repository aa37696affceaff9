"""celery-once in short: the call locks a key, which the end of the task deletes, whoever holds it."""

from __future__ import annotations

from typing import Any, ClassVar

from celery import Task
from celery.result import EagerResult

from celery_exclusive.compat.once import QueueOnce as OurQueueOnce
from tests.compat.shop import LOCK_EXPIRE, act, app, doors

__all__ = ["app"]


class AlreadyQueued(Exception):
    def __init__(self, countdown: float) -> None:
        super().__init__(countdown)
        self.countdown = countdown


class QueueOnce(Task):
    abstract = True
    once: ClassVar[dict[str, Any]] = {}

    @property
    def once_backend(self) -> Any:
        return self

    def clear_lock(self, key: str) -> None:
        doors.delete(key)

    def get_key(self, args: Any, kwargs: Any) -> str:
        return f"qo_{self.name}_key-{args[0]}"

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        once = {**self.once, **options.pop("once", {})}
        key = self.get_key(args, kwargs)
        if not options.get("retries") and not doors.set(key, "token", nx=True, ex=once.get("timeout", 3600)):
            if once.get("graceful"):
                return EagerResult(None, None, "REJECTED")
            raise AlreadyQueued(doors.pttl(key) / 1000)
        return super().apply_async(args, kwargs, **options)

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, _: Any) -> None:
        self.once_backend.clear_lock(self.get_key(args, kwargs))


ONCE = {"keys": ["key"], "timeout": LOCK_EXPIRE, "graceful": True}


@app.task(bind=True, shared=False, base=QueueOnce, once=ONCE)
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=OurQueueOnce, once=ONCE)
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
