"""The other packages: each in the way in which its own page shows it, and at its fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import redis
from celery import Celery

FOLDER = Path(__file__).parents[1] / ".venv/peers"
sys.path.append(str(FOLDER))  # at the end: it changes nothing that is installed

NO_WHEEL = {"celery-once": "the index has no wheel of it"}
"""Packages that cannot be installed, and why."""
Lock = Callable[[str], AbstractContextManager[object]]


def missing(*names: str) -> dict[str, str]:
    """Return which of these packages are not here, and why."""
    absent = {}
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            absent[name] = NO_WHEEL.get(name, "could not be installed")
    return absent


def redis_py(url: str) -> Lock:
    client = redis.Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


def python_redis_lock(url: str) -> Lock:
    from redis_lock import Lock as RedisLock

    client = redis.Redis.from_url(url)
    return lambda key: RedisLock(client, key, expire=30)


LOCKS: dict[str, Callable[[str], Lock]] = {"redis-py Lock": redis_py, "python-redis-lock": python_redis_lock}


def singleton(_app: Celery, store: str) -> dict[str, Any]:
    """Return the options of a task that celery-singleton keeps from being queued twice."""
    from celery_singleton import Singleton
    from celery_singleton.backends import RedisBackend

    backend = RedisBackend(store)  # its own way keeps the one of a process's first task for all others
    return {"base": Singleton, "unique_on": ["key"], "lock_expiry": 600, "_singleton_backend": backend}


def heimdall(app: Celery, store: str) -> dict[str, Any]:
    """Return the options of a task that celery-heimdall keeps from being queued twice."""
    from celery_heimdall import HeimdallTask

    class Task(HeimdallTask):
        abstract = True

        def setup_redis(self) -> redis.Redis:
            return redis.Redis.from_url(store)

    app.conf.heimdall_unique_lock_blocking = False  # else a duplicate is refused after a second
    return {"base": Task, "heimdall": {"unique": True}}


def once_task(_app: Celery, store: str) -> dict[str, Any]:
    """Return the options of a task that celery-once-task keeps from being queued twice."""
    from celery_once_task import OnceTask, configure
    from celery_once_task.utils import reset_redis

    configure(redis_url=store)
    reset_redis()  # all tasks of a process share one client, which keeps its first URL
    return {"base": OnceTask}


UNIQUE: dict[str, Callable[[Celery, str], dict[str, Any]]] = {
    "celery-singleton": singleton,
    "celery-heimdall": heimdall,
    "celery-once-task": once_task,
}
