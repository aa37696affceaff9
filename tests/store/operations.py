"""What the tests of stores ask most: owners acquire and release a key."""

from __future__ import annotations

from celery_exclusive.core.operations import Acquire, Ending, Release
from celery_exclusive.core.records import SECOND

LIFE = 600 * SECOND


def take(id: str, ttl: int = LIFE, *, limit: int = 1, message: bytes | None = b"message") -> Acquire:
    return Acquire(id, f"token of {id}", ttl, limit, message=message)


def give(id: str, ending: Ending = "done") -> Release:
    return Release(id, f"token of {id}", ending)
