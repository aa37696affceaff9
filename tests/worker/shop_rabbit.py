"""The shop, and a task that its worker's main process watches and that is retried once."""

from __future__ import annotations

from typing import Any

from celery import Task

from tests.worker.shop_canvas import SHARED, Watched, act, app, task

__all__ = ["app"]


@task(exclusive=SHARED, base=Watched)
def retried(self: Task, key: str, tag: str = "", hold: bool = False) -> Any:
    """Ends with the priority that it sees."""
    act(self, key, f"{tag}{self.request.retries}", hold=hold and not self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.delivery_info["priority"]
