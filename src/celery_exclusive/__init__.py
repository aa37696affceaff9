"""Exclusive Celery tasks: one at a time per key, and nothing lost."""

from celery_exclusive.errors import (
    Conflict,
    DuplicateTask,
    ExclusiveError,
    LeaseLost,
    LockHeld,
    NoLease,
    OptionError,
    StoreUnavailable,
)
from celery_exclusive.install import Task, install
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local.lock import lock
from celery_exclusive.options.declared import Exclusive, Unique
from celery_exclusive.task import LockHolder, LockState

__all__ = [
    "Conflict",
    "DuplicateTask",
    "Exclusive",
    "ExclusiveError",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "LockHolder",
    "LockState",
    "NoLease",
    "OptionError",
    "StoreUnavailable",
    "Task",
    "Unique",
    "install",
    "lock",
]
