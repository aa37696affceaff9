"""celery-singleton and celery-heimdall themselves, whose locks are where the others' are."""

from __future__ import annotations

import os

from celery import Task
from celery_heimdall import HeimdallTask
from celery_singleton import Singleton
from celery_singleton.backends import RedisBackend

from tests.compat.shop import doors

__all__ = ["Heimdall", "Lone", "clearing"]

ONE_BY_ONE = {
    "unique": True,
    "unique_raises": True,
    "unique_lock_timeout": 0.1,
    "key": lambda args, kwargs: args[0],
}


class Lone(Singleton):
    abstract = True
    singleton_backend = RedisBackend(os.environ["LAB_DOORS"])  # the package keeps that of its first app
    unique_on = ("account_id",)
    raise_on_duplicate = True


class Heimdall(HeimdallTask):
    abstract = True
    heimdall = ONE_BY_ONE

    def setup_redis(self) -> object:
        return doors


def clearing(package: type[Task]) -> type[Task]:
    """Return the class whose calls take no lock of the package, and whose runs release that of a call."""
    return type(
        f"Clearing{package.__name__}", (package,), {"abstract": True, "apply_async": Task.apply_async}
    )
