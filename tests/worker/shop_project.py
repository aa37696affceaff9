"""The app of a project that shares a server with others: its settings have its name, too."""

from __future__ import annotations

from celery import Celery, Task

from celery_exclusive import Exclusive, Unique, install
from tests.worker.shop import CONF, act

PROJECT = CONF.get("project", "shop")
app = install(Celery(PROJECT))
app.conf.update(CONF)


@app.task(bind=True, name="tasks.digest", shared=False, unique=Unique("key"))
def digest(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return tag


@app.task(bind=True, shared=False, exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
