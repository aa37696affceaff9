"""Tasks of which several queues get a copy: by a broadcast, a topic exchange and a direct one."""

from __future__ import annotations

from typing import Any

from celery import Task
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, noted, task

TOPIC, DIRECT = Exchange("by-topic", "topic"), Exchange("by-key", "direct")
app.conf.task_queues = [
    Queue("lab"),
    Broadcast("news"),
    Queue("left", TOPIC, routing_key="sides.#"),
    Queue("right", TOPIC, routing_key="sides.#"),
    Queue("up", DIRECT, routing_key="ends"),
    Queue("down", DIRECT, routing_key="ends"),
]


def body(self: Task, key: str, tag: str, hold: bool) -> str:
    info = self.request.delivery_info
    came = [info["exchange"], info["routing_key"]]
    noted("body", self, tag, worker=self.request.hostname, came=came, retries=self.request.retries)
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key"))
def reload(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skipped(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(exclusive=Exclusive("key"))
def again(self: Task, key: str, tag: str = "", hold: bool = False, worker: str = "") -> str:
    """On one worker its first attempt is retried."""
    body(self, key, tag, hold and not self.request.retries)
    if self.request.hostname == worker and not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=Unique("key"))
def once(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key"), exclusive=Exclusive("key"))
def once_at_a_time(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key"), exclusive=Exclusive(key="busy", on_conflict="skip"))
def once_unless_busy(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


__all__: list[Any] = ["app"]
