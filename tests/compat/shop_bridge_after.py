"""The end of the bridge, for processes that publish and work: calls take the unique key, runs clear both."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.compat.shop import act, app, task
from tests.compat.shop_once import QueueOnce
from tests.compat.shop_packages import Heimdall, Lone, clearing

__all__ = ["app"]


class ClearingQueueOnce(QueueOnce):
    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return Task.apply_async(self, *args, **options)


@task(name="bridge.import_feed", exclusive=Exclusive("feed_url", on_conflict="skip", skip_result=None))
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str:
    return act(self, feed_url, tag, hold=hold)


@task(name="bridge.send_digest", base=ClearingQueueOnce, unique=Unique("user_id"))
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)


@task(name="bridge.send_invoice", base=clearing(Lone), unique=Unique("account_id"))
def send_invoice(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)


@task(name="bridge.send_report", base=clearing(Heimdall), unique=Unique("account_id", on_conflict="raise"))
def send_report(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)
