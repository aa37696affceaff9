"""Attributes of a task that do nothing: meant for its option, misspelt, or without their base class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from celery import Task

from celery_exclusive.errors import Conflict, LockHeld, OptionError, closest, shown
from celery_exclusive.options.declared import KINDS, NAMES
from celery_exclusive.seams.celery_app import is_decorated

_PARAMETERS = {kind: {field.name for field in dataclasses.fields(kind)} for kind in KINDS}
_CELERYS = frozenset(dir(Task))
_LIKENESS = 0.85
_READERS: Final = {
    "once": ("once", "QueueOnce"),
    "unique_on": ("singleton", "Singleton"),
    "raise_on_duplicate": ("singleton", "Singleton"),
    "lock_expiry": ("singleton", "Singleton"),
    "heimdall": ("heimdall", "HeimdallTask"),
}
"""The module of ours, and the base class in it, that reads each option of another library."""
_DICTS: Final = ("once", "heimdall")
"""The options whose values are dicts. An attribute of another type belongs to the user's class."""


def refuse_misplaced(cls: type, name: str) -> None:
    """Raise OptionError if an argument of this task's decorator would have no effect.

    A task that is written as a class may have attributes of any name, and so may its base.
    """
    if not is_decorated(cls):
        return
    known = _CELERYS.union(*(vars(base) for base in cls.__mro__[1:]))
    options = {kind: getattr(cls, kind.attribute, None) for kind in KINDS}
    declared = sorted(filter(options.get, KINDS), key=lambda kind: not isinstance(options[kind], kind))
    for word, value in vars(cls).items():
        if word in NAMES or word in known:
            continue
        for kind in declared:
            if word in _PARAMETERS[kind]:
                raise OptionError(
                    f"task {name}: {word}={shown(value)} stands beside its option and does nothing: write "
                    f"{kind.attribute}={kind.__name__}({word}=...)"
                )
        if meant := closest(word, NAMES, _LIKENESS):
            raise OptionError(f"task {name}: {word}={shown(value)} does nothing: did you mean '{meant}='?")


def refuse_autoretry(task: Any) -> None:
    """Raise OptionError if Celery should retry a conflict of the task itself: it retries errors of bodies."""
    option, errors = getattr(task, "exclusive", None), getattr(task, "autoretry_for", ())
    if option and option.on_conflict == "raise" and {LockHeld, Conflict}.intersection(errors):
        raise OptionError(
            f"task {task.name}: autoretry_for does not see the LockHeld of {option!r}, which comes before "
            "the body: give it on_conflict='reschedule', which tries again until the key is free, and "
            "give_up_after= if the task is to fail at last"
        )


def leftovers(cls: type, task_name: str) -> Iterator[str]:
    """Yield a text for each option of another library that no base of this task reads."""
    own, bases = vars(cls), cls.__mro__[1:]
    for option, (module, reader) in _READERS.items():
        is_theirs = option in own and (isinstance(own[option], dict) or option not in _DICTS)
        if is_theirs and not any(base.__name__ == reader or option in vars(base) for base in bases):
            yield (
                f"task {task_name}: {option}={own[option]!r} does nothing, since only base={reader} "
                "reads it. Delete it and write unique= or exclusive=, or use the base of "
                f"celery_exclusive.compat.{module}"
            )
