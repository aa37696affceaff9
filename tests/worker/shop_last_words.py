"""Tasks that end in all ways, whose ends publish what has their own key: errbacks and hooks."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.accepting import Accepting, wait_until_accepted
from tests.worker.shop import act, app, task
from tests.worker.shop_endings import run_on

__all__ = ["app"]


class Ending(app.Task):  # type: ignore[misc, name-defined]
    """What has failed is sent again by a hook; some fail before their body."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if "early" in args:
            raise KeyError("early")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        key, _, sends_again = args
        if sends_again:
            self.apply_async((key, "sent again", False))


def body(self: Task, key: str, how: str, sends_again: bool) -> str:
    act(self, key, how)
    if how == "exception":
        raise KeyError(how)
    if how == "killed":
        wait_until_accepted(self)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hard-limit":
        run_on(self)  # so that it lives on while its main process tells the end
    return how


def clean_up(self: Task, key: str) -> str:
    act(self, key, "cleaned up")
    return "cleaned up"


for name, option in (
    ("unique", {"unique": Unique(key="job:{key}")}),
    ("exclusive", {"exclusive": Exclusive(key="job:{key}", on_conflict="skip")}),
):
    task(name=f"{__name__}.ends_{name}", base=Ending, Request=Accepting, **option)(body)
    task(name=f"{__name__}.cleans_{name}", **option)(clean_up)


@task(unique=Unique(key="job:{key}"), trail=False)
def untrailed(self: Task, key: str, tag: str) -> str:
    return act(self, key, tag) or tag
