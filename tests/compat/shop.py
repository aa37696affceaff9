"""What all modules of recipes share: an app with our locks, Django's cache on Redis, and one body."""

from __future__ import annotations

import os

from celery import Task
from django.core.cache.backends.redis import RedisCache

from tests.compat import LOCK_EXPIRE
from tests.worker.shop import app, doors, journal, noted, task

__all__ = ["LOCK_EXPIRE", "act", "app", "cache", "doors", "journal", "noted", "task"]

cache = RedisCache(os.environ["LAB_DOORS"], {})


def act(task: Task, key: str, tag: str, *, hold: bool) -> str:
    """One body, on the record from start to end; `hold` keeps it open until the test opens the tag's door."""
    noted("start", task, tag, key=key)
    if hold:
        doors.blpop([f"door:{tag}"], timeout=100)
    noted("end", task, tag, key=key)
    return tag
