"""A worker without the library that knows the shop's task `wait`, and has one retried elsewhere."""

from __future__ import annotations

import json
import os

from celery import Celery, Task

from tests.worker.journal import Journal

app = Celery("shop")
app.conf.update(json.loads(os.environ["LAB_CONF"]))
journal = Journal(os.environ["LAB_JOURNAL"])


@app.task(bind=True, name="tests.worker.shop.wait", max_retries=1)
def wait(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> str:
    journal.write("unlocked", id=self.request.id, key=key, tag=tag)
    if tag == "retried":
        raise self.retry(countdown=0, queue="side")
    return tag
