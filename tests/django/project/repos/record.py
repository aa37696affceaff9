"""What a body of these tasks does: it tells that it began and waits to be let go."""

import os

import redis

from tests.worker.journal import Journal

journal = Journal(os.environ["LAB_JOURNAL"])
doors = redis.Redis.from_url(os.environ["LAB_DOORS"], socket_timeout=None)


def act(task, tag):
    journal.write("start", id=task.request.id, tag=tag, key=task.lease.key, **where(task))
    doors.blpop([f"door:{tag}"], timeout=100)
    journal.write("end", id=task.request.id, tag=tag)


def where(task):
    """Where this process thinks that the locks are."""
    services = task.app._celery_exclusive
    return {"store": services.store.url, "prefix": services.settings.exclusive_prefix}
