"""A release of the shop. In the next one, `shop_deploy_new`, its tasks have other options."""

from __future__ import annotations

from celery import Task

from celery_exclusive import Exclusive, Unique
from tests.worker.shop import act, app, task

__all__ = ["app"]


@task(name="deploy.crawl", exclusive=Exclusive("key", limit=1))
def crawl(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.sync", exclusive=Exclusive("key"))
def sync(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.export", exclusive=Exclusive("key"))
def export(self: Task, key: str, tag: str = "", part: int = 0) -> str:
    act(self, key, tag, hold=True)
    return tag


@task(name="deploy.freed", exclusive=Exclusive("key"))
def freed(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.locked")
def locked(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.unique_no_more", unique=Unique("key"))
def unique_no_more(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.unique_now")
def unique_now(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(name="deploy.other_window", unique=Unique("key"))
def other_window(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag
