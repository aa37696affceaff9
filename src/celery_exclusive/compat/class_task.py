"""`Task`, for the task classes of 2010: `run(self, feed_url, **kwargs)` and `self.get_logger(**kwargs)`."""

from __future__ import annotations

import logging
from typing import Any

from celery.utils.log import get_task_logger

from celery_exclusive.installer import Task as ExclusiveTask


class Task(ExclusiveTask):
    """A base of task classes that have a `name` and a `run`, and ask for their logger.

    Example:
        class FeedImporter(Task):
            name = "feed.import"
            exclusive = Exclusive("feed_url", on_conflict="skip")       # in place of the lock in run()

            def run(self, feed_url, **kwargs):
                self.get_logger(**kwargs).debug("Importing feed: %s", feed_url)

        feed_importer = app.register_task(FeedImporter())               # feed_importer.delay(url)

    The `is_locked`, `acquire_lock` and `release_lock` of the old body are the methods of a `CacheLock`.
    """

    abstract = True

    def get_logger(self, **_: Any) -> logging.Logger:
        """Return the logger of this task, whatever the message has as keyword arguments."""
        return get_task_logger(self.name)
