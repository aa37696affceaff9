"""The release without the old locks."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.compat.shop import act, app, task

__all__ = ["app"]


@task(name="bridge.import_feed", exclusive=Exclusive("feed_url", on_conflict="skip", skip_result=None))
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str:
    return act(self, feed_url, tag, hold=hold)


@task(name="bridge.send_digest", unique=Unique("user_id"))
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)


@task(name="bridge.send_invoice", unique=Unique("account_id"))
def send_invoice(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)


@task(name="bridge.send_report", unique=Unique("account_id", on_conflict="raise"))
def send_report(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)
