"""A base class that a factory sets after the tasks were declared with what it was before: None."""

from __future__ import annotations

from functools import partial

from celery import Celery, Task

from celery_exclusive import Unique, install
from tests.compat.shop import act
from tests.compat.shop_once import ONCE, QueueOnce
from tests.worker.shop import CONF

app = Celery("late")
app.conf.update(CONF)
task = partial(app.task, bind=True, shared=False)


class Extensions:
    queue_once: type[Task] | None = None


@task(base=Extensions.queue_once, once=ONCE)
def printed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


@task(unique=Unique("key"))
def ours(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act(self, key, tag, hold=hold)


def create_app() -> None:
    """What the factory does, too late for one and early enough for the other."""
    Extensions.queue_once = QueueOnce
    install(app)


create_app()
