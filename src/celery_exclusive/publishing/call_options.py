"""The options of one call: those of its task, unless the call changes them."""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

from celery import Celery

from celery_exclusive.errors import OptionError, closest, did_you_mean
from celery_exclusive.options.declared import KINDS, NAMES, Exclusive, Unique
from celery_exclusive.options.values import declared_options

_CELERYS = {"queue", "exchange", "routing_key", "priority", "serializer", "compression", "delivery_mode"}
_CELERYS |= {"immediate", "mandatory", "ignore_result", *signature(Celery.send_task).parameters}
"""Options that most calls have, and that Celery knows."""
_TYPES = frozenset(KINDS)


class CallOptions(NamedTuple):
    """`off` names what the call switches off; `values` are those that it gives instead, as they travel."""

    exclusive: Exclusive | None
    unique: Unique | None
    off: tuple[str, ...]
    values: dict[str, dict[str, Any]]


def pop_call_options(name: str, task: Any, options: dict[str, Any]) -> CallOptions:
    """Remove `exclusive=` and `unique=` from the options of a call, and return the options that it has.

    Raises OptionError if one is neither None nor such an option, or if the task declares none: its workers
    would not look for any.
    """
    exclusive, unique = declared_options(task)
    if options.keys() <= _CELERYS and _TYPES.isdisjoint(map(type, options.values())):
        return CallOptions(exclusive, unique, (), {})
    _refuse_misspelt(name, options)
    declared = {"exclusive": exclusive, "unique": unique}
    chosen: dict[str, Any] = {**declared}
    off: list[str] = []
    values: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        attribute = kind.attribute
        if attribute not in options:
            continue
        given = chosen[attribute] = options.pop(attribute)
        if given is None:
            off.append(attribute)
        elif not isinstance(given, kind):
            raise OptionError(
                f"task {name}: {attribute}={given!r} is not an option of a call; give it "
                f"{attribute}={kind.__name__}(...), or switch it off with {attribute}=None"
            )
        elif not any(declared.values()):
            raise OptionError(
                f"task {name}: {attribute}={given!r} in a call does nothing, since the task has no options "
                "or is unknown here: declare an option at the task, and let the call change it"
            )
        else:
            values[attribute] = given.values
    return CallOptions(**chosen, off=tuple(off), values=values)


def _refuse_misspelt(name: str, options: dict[str, Any]) -> None:
    for word, given in options.items():
        if word in NAMES:
            continue
        if isinstance(given, KINDS) or (given is None and word not in _CELERYS and _is_misspelt(word)):
            raise OptionError(
                f"task {name}: {word}={given!r} is no option of a call{did_you_mean(word, NAMES)}"
            )


@lru_cache
def _is_misspelt(word: str) -> bool:
    return closest(word, NAMES) is not None
