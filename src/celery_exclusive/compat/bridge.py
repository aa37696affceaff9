"""Bridges from the locks of other packages: base classes for a release whose tasks have both locks.

A call acquires the package's lock and then the unique key. If the second is refused, no worker would release
the first, and no call would be published until its timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Task

from celery_exclusive.errors import ExclusiveError


class Bridge(Task):  # type: ignore[type-arg]
    """Releases the lock of another package when the call that has acquired it is refused.

    The class stands behind the package's class, where only a call comes that has the package's lock.
    """

    abstract = True

    def release_other_lock(self, args: Any, kwargs: Any) -> None:
        """Release the package's lock of a call with these arguments."""
        raise NotImplementedError

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        try:
            result = super().apply_async(args, kwargs, *rest, **options)
        except ExclusiveError:
            self._refused(args, kwargs, options)
            raise
        if getattr(result, "outcome", None) == "skipped":
            self._refused(args, kwargs, options)
        return result

    def _refused(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
        if not options.get("retries"):  # the run of a retry releases its lock
            self.release_other_lock(args or (), kwargs or {})


class OnceBridge(Bridge):
    """The bridge from celery-once.

    Example:
        class BothLocks(QueueOnce, OnceBridge):     # QueueOnce of celery_once
            abstract = True

        @app.task(base=BothLocks, once={"keys": ["user_id"]}, unique=Unique("user_id", on_conflict="raise"))
        def send_digest(user_id): ...
    """

    abstract = True

    def release_other_lock(self: Any, args: Any, kwargs: Any) -> None:
        self.once_backend.clear_lock(self.get_key(args, kwargs))


class SingletonBridge(Bridge):
    """The bridge from celery-singleton: `class BothLocks(Singleton, SingletonBridge)`."""

    abstract = True

    def release_other_lock(self: Any, args: Any, kwargs: Any) -> None:
        self.release_lock(task_args=args, task_kwargs=kwargs)


class HeimdallBridge(Bridge):
    """The bridge from celery-heimdall: `class BothLocks(HeimdallTask, HeimdallBridge)`."""

    abstract = True

    def release_other_lock(self: Any, args: Any, kwargs: Any) -> None:
        package = import_module("celery_heimdall.task")
        prefix = self.heimdall_config.lock_prefix
        package.release_lock(self, package.unique_key_for_task(self, args, kwargs, prefix=prefix))
