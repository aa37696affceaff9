"""The common recipes and packages for locks of Celery tasks, under their own names, on our locks.

Each module replaces one import:

* `cookbook`: `memcache_lock`, the context manager of Celery's cookbook.
* `cache_lock`: `CacheLock`, a lock in Django's cache.
* `class_task`: `Task`, the task classes of 2010.
* `single_task`: `SingleTask`, one run at a time per TAG.
* `unique_task`: `UniqueCeleryTask`, one run at a time per lock id.
* `once`: `QueueOnce` of celery-once.
* `singleton`: `Singleton` of celery-singleton.
* `heimdall`: `HeimdallTask` of celery-heimdall.
* `bridge`: for the release between one of these three packages and ours.

An option that changes its meaning is reported once, as a `CompatWarning` that names the new spelling.
"""

from celery_exclusive.compat.changed import CompatWarning

__all__ = ["CompatWarning"]
