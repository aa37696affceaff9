"""Refuses arguments of a task's decorator that belong into its option, and misspelt names of options."""

from __future__ import annotations

import dataclasses

from celery import Task

from celery_exclusive.errors import OptionError, closest, shown
from celery_exclusive.options.declared import KINDS, NAMES
from celery_exclusive.seams.celery_app import is_decorated

_PARAMETERS = {kind: {field.name for field in dataclasses.fields(kind)} for kind in KINDS}
_CELERYS = frozenset(dir(Task))
_LIKENESS = 0.85


def refuse_misplaced(cls: type, name: str) -> None:
    """Raise OptionError if an argument of this task's decorator would have no effect.

    A task that is written as a class may have attributes of any name, and so may its base.
    """
    if not is_decorated(cls):
        return
    known = _CELERYS.union(*(vars(base) for base in cls.__mro__[1:]))
    declared = [kind for kind in KINDS if getattr(cls, kind.attribute, None)]
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
