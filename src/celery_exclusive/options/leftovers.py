"""Finds options of other libraries that a task still has, though no base class reads them any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_READERS: Final = {
    "once": ("once", "QueueOnce"),
    "unique_on": ("singleton", "Singleton"),
    "raise_on_duplicate": ("singleton", "Singleton"),
    "lock_expiry": ("singleton", "Singleton"),
    "heimdall": ("heimdall", "HeimdallTask"),
    "custom_lock_expire": ("unique_task", "UniqueCeleryTask"),
}
"""The module of ours, and the base class in it, that reads each option."""
_DICTS: Final = ("once", "heimdall")
"""The options whose values are dicts. An attribute of another type belongs to the user's class."""


def leftovers(cls: type, task_name: str) -> Iterator[str]:
    """Yield a text for each option of this task that none of its bases reads: Celery accepts any name."""
    for option, (module, reader) in _READERS.items():
        bases = cls.__mro__[1:]
        is_read = any(base.__name__ == reader or option in vars(base) for base in bases)
        is_theirs = isinstance(vars(cls).get(option), dict) or option not in _DICTS
        if option in vars(cls) and is_theirs and not is_read:
            yield (
                f"task {task_name}: {option}={vars(cls)[option]!r} does nothing, since only base={reader} "
                "reads it. Delete it and write unique= or exclusive=, or use the base of "
                f"celery_exclusive.compat.{module}"
            )
