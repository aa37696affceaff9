"""The task class of 2010, which looks whether a key is set, and then sets it."""

from __future__ import annotations

from typing import Any

from celery import Task as CeleryTask

from celery_exclusive import Exclusive
from celery_exclusive.compat.cache_lock import CacheLock
from celery_exclusive.compat.class_task import Task
from tests.compat.shop import LOCK_EXPIRE, act, app, cache

__all__ = ["app"]


class FeedImporter(CeleryTask):
    name = f"{__name__}.printed"

    def run(self, feed_url: str, **kwargs: Any) -> str | None:
        lock_id = f"{self.name}-lock-{feed_url}"

        def is_locked() -> bool:
            return str(cache.get(lock_id)) == "true"

        def acquire_lock() -> None:
            cache.set(lock_id, "true", LOCK_EXPIRE)

        def release_lock() -> None:
            cache.set(lock_id, "nil", 1)

        if is_locked():
            return None
        acquire_lock()
        try:
            return act(self, feed_url, **kwargs)
        finally:
            release_lock()


class OurFeedImporter(Task):
    name = f"{__name__}.ours"

    def run(self, feed_url: str, **kwargs: Any) -> str | None:
        self.get_logger(**kwargs).info("Importing feed: %s", feed_url)
        guard = CacheLock(f"{self.name}-lock-{feed_url}", LOCK_EXPIRE)
        if not guard.acquire():
            return None
        try:
            return act(self, feed_url, **kwargs)
        finally:
            guard.release()


class DeclaredFeedImporter(Task):
    name = f"{__name__}.declared"
    exclusive = Exclusive("feed_url", ttl=LOCK_EXPIRE, on_conflict="skip", skip_result=None)

    def run(self, feed_url: str, **kwargs: Any) -> str:
        self.get_logger(**kwargs).info("Importing feed: %s", feed_url)
        return act(self, feed_url, **kwargs)


for importer in (FeedImporter, OurFeedImporter, DeclaredFeedImporter):
    app.register_task(importer())
