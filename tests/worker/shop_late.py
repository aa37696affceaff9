"""An app that has no task with options when its worker starts, and gets one while it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery import Celery
from celery.concurrency.prefork import TaskPool
from celery.signals import worker_ready

from celery_exclusive import install
from tests.worker.shop import CONF

TASKS = "tests.worker.shop_late_tasks"
app = install(Celery("late"))
app.conf.update(CONF)


@worker_ready.connect
def import_tasks(sender: Any, **_: object) -> None:
    """Do what `control pool_restart` does, where there is none."""
    if not app.conf.worker_pool_restarts:
        import_module(TASKS)
        sender.update_strategies()


class Processes(TaskPool):
    """A pool class of a project."""
