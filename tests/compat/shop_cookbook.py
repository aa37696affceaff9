"""The context manager of Celery's cookbook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.compat.shop import cache


@contextmanager
def memcache_lock(lock_id: str, oid: str, lock_expire: float) -> Iterator[bool]:
    expires_at = time.monotonic() + lock_expire
    is_acquired = cache.add(lock_id, oid, lock_expire)
    try:
        yield is_acquired
    finally:
        if is_acquired and time.monotonic() < expires_at:
            cache.delete(lock_id)
