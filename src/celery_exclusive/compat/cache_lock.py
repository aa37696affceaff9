"""`CacheLock`, a lock in Django's cache with `acquire`, `release` and `locked`."""

from __future__ import annotations

from typing import Any

from celery_exclusive.compat.changed import report
from celery_exclusive.local.lock import lock

report(
    __name__,
    "timeout of CacheLock() ends no lock of a living holder: the lease is renewed, and expires so many "
    "seconds after its process has died. An object that is deleted releases nothing. Write "
    "lock(cache_key, wait=0), which has the same methods",
)


class CacheLock:
    """A lock that is acquired at once, or not at all.

    Example:
        guard = CacheLock("nightly", timeout=60)
        if guard.acquire():
            try: ...
            finally: guard.release()

    Parameters:
        cache_key: a string that names what is locked.
        timeout: seconds after which the lock of a dead process is free again; None: 30. The lease of a living
            one is renewed.
        app: the Celery app whose store to use. Default: the current app, or the only one with `install`.

    Each method raises StoreUnavailable if the store does not answer, except `release`: it logs, and the lease
    expires after `timeout`.
    """

    def __init__(self, cache_key: str, timeout: float | None = None, *, app: Any = None) -> None:
        self._lock = lock(cache_key, ttl=30 if timeout is None else timeout, wait=0, app=app)

    def acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was acquired."""
        return not self._is_held_by_us and self._lock.acquire()

    def release(self) -> None:
        """Release the lock if this object holds it."""
        if self._is_held_by_us:
            self._lock.release()

    def locked(self) -> bool:
        """Whether the lock has a holder: a `CacheLock`, a `lock()`, or a run of a task with this key."""
        return self._lock.locked()

    @property
    def _is_held_by_us(self) -> bool:
        return hasattr(self._lock, "lease")
