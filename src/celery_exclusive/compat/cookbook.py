"""`memcache_lock`, the context manager of Celery's cookbook."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery_exclusive.compat.changed import report
from celery_exclusive.errors import LockHeld
from celery_exclusive.local.lock import lock

report(
    __name__,
    "lock_expire of memcache_lock() ends no lock of a living holder: the lease is renewed, and expires so "
    "many seconds after its process has died. oid is not used: the holder is this process. Write `with "
    "lock(lock_id, wait=0):`, or exclusive=Exclusive('feed_url', on_conflict='skip') at the task",
)


@contextmanager
def memcache_lock(
    lock_id: str,
    oid: object = None,  # noqa: ARG001 - the recipe's callers give it
    lock_expire: float = 30,
    *,
    app: Any = None,
) -> Generator[bool]:
    """Hold a lock while a block of code runs, if it is free; yield whether it was acquired.

    Example:
        with memcache_lock(f"import_feed-lock-{digest}", self.app.oid) as acquired:
            if acquired:
                return import_feed_from(feed_url)

    Parameters:
        lock_id: a string that names what is locked.
        oid: not used; only the holder can release the lock.
        lock_expire: seconds after which the lock of a dead process is free again. The lease of a living one
            is renewed. Default 30.
        app: the Celery app whose store to use. Default: the current app, or the only one with `install`.

    Raises:
        StoreUnavailable: the store does not answer. A cache that is down looked like a lock that is held.
    """
    with ExitStack() as held:
        try:
            held.enter_context(lock(lock_id, ttl=lock_expire, wait=0, app=app))
            is_acquired = True
        except LockHeld:
            is_acquired = False
        yield is_acquired
