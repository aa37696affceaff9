"""The common packages for locks of Celery tasks, under their own names, on our locks.

Each module replaces one import:

* `once`: `QueueOnce` of celery-once.
* `singleton`: `Singleton` of celery-singleton.
* `heimdall`: `HeimdallTask` of celery-heimdall.
* `bridge`: for the release between one of these three packages and ours.

An option that changes its meaning is reported once, as a `CompatWarning` that names the new spelling.
"""

from celery_exclusive.compat.changed import CompatWarning

__all__ = ["CompatWarning"]
