"""The bridge: each task has the old lock and the new option."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from celery_exclusive.compat.bridge import HeimdallBridge, OnceBridge, SingletonBridge
from tests.compat.shop import act, app, task
from tests.compat.shop_cookbook import memcache_lock
from tests.compat.shop_once import QueueOnce
from tests.compat.shop_packages import Heimdall, Lone

__all__ = ["app"]


@task(name="bridge.import_feed", exclusive=Exclusive("feed_url", on_conflict="skip", skip_result=None))
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str | None:
    with memcache_lock(f"import_feed-{feed_url}", self.app.oid, 600) as acquired:
        return act(self, feed_url, tag, hold=hold) if acquired else None


class BothLocks(QueueOnce, OnceBridge):
    abstract = True


@task(name="bridge.send_digest", base=BothLocks, unique=Unique("user_id"))
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)


class LoneWithBoth(Lone, SingletonBridge):
    abstract = True


class HeimdallWithBoth(Heimdall, HeimdallBridge):
    abstract = True


@task(name="bridge.send_invoice", base=LoneWithBoth, unique=Unique("account_id"))
def send_invoice(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)


@task(name="bridge.send_report", base=HeimdallWithBoth, unique=Unique("account_id", on_conflict="raise"))
def send_report(self: Task, account_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, account_id, tag, hold=hold)
