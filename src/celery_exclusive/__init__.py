"""Exclusive Celery tasks: one at a time per key, and nothing lost."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_exclusive.errors import (
        Conflict,
        DuplicateTask,
        ExclusiveError,
        LeaseLost,
        LockHeld,
        NoLease,
        OptionError,
        StoreRefused,
        StoreUnavailable,
        Superseded,
    )
    from celery_exclusive.installer import install
    from celery_exclusive.leases.lease import Lease
    from celery_exclusive.local.lock import lock
    from celery_exclusive.options.declared import Debounce, Exclusive, Unique
    from celery_exclusive.task import LockHolder, LockState, Restart, WaitingTask
    from celery_exclusive.typing import Task, shared_task

__all__ = [
    "Conflict",
    "Debounce",
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
    "Restart",
    "StoreRefused",
    "StoreUnavailable",
    "Superseded",
    "Task",
    "Unique",
    "WaitingTask",
    "install",
    "lock",
    "shared_task",
]

_MODULES = {
    "Debounce": "options.declared",
    "Exclusive": "options.declared",
    "Lease": "leases.lease",
    "LockHolder": "task",
    "LockState": "task",
    "Restart": "task",
    "Task": "installer",
    "Unique": "options.declared",
    "WaitingTask": "task",
    "install": "installer",
    "lock": "local.lock",
    "shared_task": "typing",
}
"""The modules of the names that are no errors."""


if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: pytest and Celery import this for their plugins."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
