"""celery-heimdall in short: call and run lock a key, which each end deletes, also that of a refused run."""

from __future__ import annotations

from typing import Any, ClassVar

from celery import Task
from celery.utils import uuid

from celery_exclusive.compat.heimdall import HeimdallTask as OurHeimdallTask
from tests.compat.shop import act, app, doors

__all__ = ["app"]


class HeimdallTask(Task):
    abstract = True
    heimdall: ClassVar[dict[str, Any]] = {}

    def may_have(self, args: Any, task_id: str) -> bool:
        key = self.heimdall["key"](args, {})
        return bool(doors.set(key, task_id, nx=True, ex=3600)) or doors.get(key) == task_id.encode()

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any) -> Any:
        task_id = task_id or uuid()
        if not self.may_have(args, task_id):
            return self.AsyncResult(doors.get(self.heimdall["key"](args, {})).decode())
        return super().apply_async(args, kwargs, task_id=task_id, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs) if self.may_have(args, self.request.id) else None

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, _: Any) -> None:
        doors.delete(self.heimdall["key"](args, {}))


HEIMDALL = {"unique": True, "key": lambda args, kwargs: f"import {args[0]}"}


@app.task(bind=True, shared=False, base=HeimdallTask, heimdall=HEIMDALL)
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@app.task(bind=True, shared=False, base=OurHeimdallTask, heimdall=HEIMDALL)
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)
