"""A release of the shop. In the next one, `shop_deploy_new`, its tasks have other options."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop_deploy import act, app, declare, task

__all__ = ["app"]

declare(
    {
        "crawl": {"exclusive": Exclusive("key", limit=1)},
        "sync": {"exclusive": Exclusive("key")},
        "freed": {"exclusive": Exclusive("key")},
        "locked": {},
        "unique_no_more": {"unique": Unique("key")},
        "unique_now": {},
        "queued_no_more": {"unique": Unique(("key", "tag")), "exclusive": Exclusive("key", order="arrived")},
        "other_window": {"unique": Unique("key")},
    }
)


@task(name="deploy.export", exclusive=Exclusive("key"))
def export(self: Task, key: str, tag: str = "", part: int = 0) -> str:
    act(self, key, tag, hold=True)
    return tag
