"""The release after `shop_deploy_old`: the same tasks with other options and parameters."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(name="deploy.crawl", exclusive=Exclusive("key", limit=2))
def crawl(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.sync", exclusive=Exclusive("key", ttl=30, on_conflict="skip"))
def sync(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.export", exclusive=Exclusive(("place", "part")))
def export(self: Task, place: str, tag: str = "", part: int = 0) -> str:
    """`key` has got another name. It is tried twice."""
    is_first = not self.request.retries
    act(self, place, tag if is_first else f"{tag}, again", hold=is_first)
    if is_first:
        raise self.retry(countdown=0)
    return tag


@task(name="deploy.freed")
def freed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.locked", exclusive=Exclusive("key"))
def locked(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.unique_no_more")
def unique_no_more(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.unique_now", unique=Unique("key"))
def unique_now(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.other_window", unique=Unique("key", until="started"))
def other_window(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
