"""Django settings: a database, one app, and how Celery treats a dead worker."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "not-a-secret-this-is-an-example"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["feeds"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("FEEDS_DATABASE", str(BASE_DIR / "feeds.sqlite3")),
        "OPTIONS": {
            # Several worker processes write: readers do not block (WAL), a writer queues for the
            # lock when its transaction begins (IMMEDIATE), not half-way through it.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
}

UNPROTECTED = os.environ.get("UNPROTECTED", "") not in ("", "0")
"""True switches our options off, to see what happens without them."""

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("FEEDS_REDIS", "redis://127.0.0.1:6379/0")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

# A task is acknowledged when it has finished, so the broker still has it if its worker dies.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

# Redis gives a dead worker's task to another one after `visibility_timeout` seconds. It has to be
# longer than the longest task; Celery's default is an hour, too long to watch. An import that was
# running comes sooner, from the store of its lock; what its worker had only fetched waits for this.
# The next two make kombu look every second rather than every 100, the last one makes the others look
# again soon if a worker is killed just while it looks (default: after five minutes).
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 15,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 3,
}

# A lease whose holder has been silent for so long is free again. Running tasks renew theirs.
CELERY_EXCLUSIVE_TTL = 10

# Without this the locks live where the results do.
if store := os.environ.get("FEEDS_STORE"):
    CELERY_EXCLUSIVE_STORE = store

if (store or "").startswith("django"):
    INSTALLED_APPS.append("celery_exclusive.contrib.django")  # its migrations make the tables of the locks

# A click waits in line. memcached can keep no line: there it is published again, with a delay.
CLICKS = "reschedule" if (store or "").startswith("memcached") else "wait"
