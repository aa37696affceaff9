"""Exclusive Celery tasks: one at a time per key, and nothing lost."""

from celery_exclusive.errors import ExclusiveError, LeaseLost, OptionError, StoreUnavailable
from celery_exclusive.install import Task, install
from celery_exclusive.lease import Lease
from celery_exclusive.options import Exclusive
from celery_exclusive.task import LockHolder, LockState

__all__ = [
    "Exclusive",
    "ExclusiveError",
    "Lease",
    "LeaseLost",
    "LockHolder",
    "LockState",
    "OptionError",
    "StoreUnavailable",
    "Task",
    "install",
]
