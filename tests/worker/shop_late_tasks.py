"""The task with an option of the app in `shop_late`."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive
from tests.worker.shop import act
from tests.worker.shop_late import app


@app.task(bind=True, shared=False, name="tests.worker.shop_late.wait", exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> None:
    act(self, key, tag, hold=hold)
