"""The release after `shop_deploy_old`: the same tasks with other options and parameters."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop_deploy import act, app, declare, task

__all__ = ["app"]

declare(
    {
        "crawl": {"exclusive": Exclusive("key", limit=2)},
        "sync": {"exclusive": Exclusive("key", ttl=30, on_conflict="skip")},
        "freed": {},
        "locked": {"exclusive": Exclusive("key")},
        "unique_no_more": {},
        "unique_now": {"unique": Unique("key")},
        "queued_no_more": {"exclusive": Exclusive("key", order="arrived")},
        "other_window": {"unique": Unique("key", until="started")},
    }
)


@task(name="deploy.export", exclusive=Exclusive(("place", "part")))
def export(self: Task, place: str, tag: str = "", part: int = 0) -> str:
    """`key` has got another name. It is tried twice."""
    is_first = not self.request.retries
    act(self, place, tag if is_first else f"{tag}, again", hold=is_first)
    if is_first:
        raise self.retry(countdown=0)
    return tag
