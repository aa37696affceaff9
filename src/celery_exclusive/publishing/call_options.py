"""The options of one call: those of its task, unless the call changes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.options.declared import KINDS, NAMES, Exclusive, Unique

if TYPE_CHECKING:
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True)
class CallOptions:
    """`off` names what the call switches off; `values` are those that it gives instead, as they travel."""

    exclusive: Exclusive | None
    unique: Unique | None
    off: tuple[str, ...]
    values: dict[str, dict[str, Any]]


def pop_call_options(services: Services, name: str, task: Any, options: dict[str, Any]) -> CallOptions:
    """Remove `exclusive=` and `unique=` from the options of a call, and return the options that it has.

    Raises OptionError if one is neither None nor such an option, or if the task declares none: its workers
    would not look for any.
    """
    for word, given in options.items():
        is_wrong = _is_misspelt(word) if given is None else isinstance(given, KINDS)
        if is_wrong and word not in NAMES:
            raise OptionError(
                f"task {name}: {word}={given!r} is no option of a call{did_you_mean(word, NAMES)}"
            )
    exclusive, unique = services.exclusive(task), services.unique(task)
    if options.keys().isdisjoint(NAMES):
        return CallOptions(exclusive, unique, off=(), values={})
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


@lru_cache
def _is_misspelt(word: str) -> bool:
    return did_you_mean(word, NAMES) != "."
