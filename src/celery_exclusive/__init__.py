"""Exclusive Celery tasks: one at a time per key, and nothing lost."""

from celery_exclusive.errors import (
    Conflict,
    ExclusiveError,
    LeaseLost,
    LockHeld,
    OptionError,
    StoreUnavailable,
)
from celery_exclusive.install import Task, install
from celery_exclusive.lease import Lease
from celery_exclusive.lock import lock
from celery_exclusive.options import Exclusive
from celery_exclusive.task import LockHolder, LockState

__all__ = [
    "Conflict",
    "Exclusive",
    "ExclusiveError",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "LockHolder",
    "LockState",
    "OptionError",
    "StoreUnavailable",
    "Task",
    "install",
    "lock",
]
