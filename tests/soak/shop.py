"""The shop of the soak: the tasks that its settings name, whose bodies tell the journal what they do."""

from __future__ import annotations

import os
import time
from uuid import uuid4

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import Superseded
from tests.soak.declared import options
from tests.worker.shop import CONF, app, journal, task

__all__ = ["app"]
_MAIN = os.getpid()
"""The main process of this worker: prefork children import nothing again."""


class FailedError(Exception):
    """What a body raises that was told to fail."""


def work(self: Task, number: int, key: str, part: str, cost: int, seconds: float, ends: str) -> int:
    """Work for so long, and end by "return", "fail" or, at the first attempt, "retry"."""
    attempt, run, how = self.request.retries, uuid4().hex, "raise"
    option = getattr(self, "exclusive", None)
    journal.write(
        "begin", run=run, number=number, task=self.name.rpartition(".")[2], key=key, part=part, cost=cost,
        id=self.request.id, attempt=attempt, main=_MAIN,
    )  # fmt: skip
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)
            if option and option.supersedes:
                self.lease.check()
        if ends == "retry" and not attempt:
            how = "retry"
            raise self.retry(countdown=seconds, max_retries=3)
        if ends == "fail":
            how = "fail"
            raise FailedError
        how = "return"
    except (Superseded, SoftTimeLimitExceeded):
        how = "superseded"
        raise
    finally:
        journal.write("end", run=run, how=how)
    return number


for declared in CONF["soak_tasks"]:
    given = options(declared)
    if CONF["soak_is_unlocked"]:
        given.pop("exclusive", None)
    task(name=f"{__name__}.{declared['name']}", **given)(work)
