"""The bridge: each task has the old lock and the new option."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.compat.shop import act, app, task
from tests.compat.shop_cookbook import memcache_lock
from tests.compat.shop_once import QueueOnce

__all__ = ["app"]


@task(name="bridge.import_feed", exclusive=Exclusive("feed_url", on_conflict="skip", skip_result=None))
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str | None:
    with memcache_lock(f"import_feed-{feed_url}", self.app.oid, 600) as acquired:
        return act(self, feed_url, tag, hold=hold) if acquired else None


@task(name="bridge.send_digest", base=QueueOnce, unique=Unique("user_id", on_conflict="raise"))
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)
