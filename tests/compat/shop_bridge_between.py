"""The bridge: each task has the old lock and the new option."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_exclusive import DuplicateTask, Exclusive, Unique
from tests.compat.shop import act, app, doors, task
from tests.compat.shop_cookbook import memcache_lock
from tests.compat.shop_once import AlreadyQueued, QueueOnce

__all__ = ["app"]


@task(name="bridge.import_feed", exclusive=Exclusive("feed_url", on_conflict="skip", skip_result=None))
def import_feed(self: Task, feed_url: str, tag: str = "", hold: bool = False) -> str | None:
    with memcache_lock(f"import_feed-{feed_url}", self.app.oid, 600) as acquired:
        return act(self, feed_url, tag, hold=hold) if acquired else None


class BridgedQueueOnce(QueueOnce):
    """A call takes the old lock, and then the unique key; if it does not get that, it returns the lock."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        try:
            return super().apply_async(args, kwargs, **options)
        except DuplicateTask as duplicate:
            doors.delete(self.get_key(args, kwargs))
            raise AlreadyQueued(0) from duplicate


@task(name="bridge.send_digest", base=BridgedQueueOnce, unique=Unique("user_id", on_conflict="raise"))
def send_digest(self: Task, user_id: str, tag: str = "", hold: bool = False) -> str:
    return act(self, user_id, tag, hold=hold)
