"""The values of options of a call, which replace the values of its task, as a message carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from celery_exclusive.options.amounts import MOST, is_number
from celery_exclusive.options.option import Option
from celery_exclusive.options.settings import Settings

Values = Mapping[str, Mapping[str, Any]]
T = TypeVar("T", bound=Option)


def option_of_call(
    task: Any, kind: type[T], values: Values | None = None, limits: Settings | None = None
) -> T | None:
    """Return a task's option with a call's values; with `limits` these may be forged: no time is longer."""
    own = getattr(task, kind.attribute, None)
    option = own if isinstance(own, kind) else None
    changes = (values or {}).get(kind.attribute)
    if changes is None:
        return option
    if limits:
        changes = _capped(changes, option, limits)
    kept = option.functions if option else {}
    functions = {name: kept[name] for name in kept if name == "key" or name not in changes}
    return kind.of(by=option.by if option else None, **functions, **changes)


def _capped(changes: Mapping[str, Any], option: Option | None, limits: Settings) -> dict[str, Any]:
    longest = {
        "ttl": limits.exclusive_ttl,
        "queued_ttl": limits.exclusive_queued_ttl,
        "period": limits.exclusive_queued_ttl,
    }
    most = {name: max(seconds, getattr(option, name, None) or 0) for name, seconds in longest.items()}
    most.update(dict.fromkeys(("limit", "max_waiting", "give_up_after"), MOST))
    return {
        name: min(value, most[name]) if name in most and is_number(value, at_least=0) else value
        for name, value in changes.items()
    }
