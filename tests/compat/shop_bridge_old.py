"""The release with the old locks, the cookbook's and those of packages. Ours is installed, and idle."""

from __future__ import annotations

from celery import Task

from tests.compat.shop import act, app, task
from tests.compat.shop_cookbook import memcache_lock
from tests.compat.shop_once import QueueOnce
from tests.compat.shop_packages import Heimdall, Lone

__all__ = ["app"]


@task(name="bridge.import_feed")
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str | None:
    with memcache_lock(f"import_feed-{feed_url}", self.app.oid, 600) as acquired:
        return act(self, feed_url, tag, hold=hold) if acquired else None


@task(name="bridge.send_digest", base=QueueOnce)
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)


@task(name="bridge.send_invoice", base=Lone)
def send_invoice(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)


@task(name="bridge.send_report", base=Heimdall)
def send_report(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)
