"""Changes what a key lets start while workers run: its limit, a pause, a hold."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from celery_exclusive import events, notices
from celery_exclusive.core.operations import Applied, Hold, SetLimit
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration
from celery_exclusive.errors import OptionError, keeps_no_room
from celery_exclusive.operate.finding import busy_key, key_of_name
from celery_exclusive.options.amounts import LONGEST, MOST, UNITS
from celery_exclusive.options.key_text import absolute_key, fitted, own_key
from celery_exclusive.stores.base import whole_line
from celery_exclusive.system.operator import operator

if TYPE_CHECKING:
    from celery_exclusive.services import Services


_FORESEEN: Final = 7_200.0
"""The seconds of a pause without an end for which the tasks that end meanwhile are counted."""


def set_limit(
    services: Services,
    key: str,
    limit: int | None,
    *,
    part: str = "",
    lasts: float | None = None,
    reason: str = "",
    by: str = "",
) -> bool:
    """Let a limit count in the place of the code's, in all workers, at once: 0 for a pause, None to end it.

    What runs, runs on, also above a lower limit. Returns whether anything has changed. It may be repeated.

    `lasts`: seconds; None: until it is ended. `by`: the operator; "": the user of this process.
    """
    by, reason = _clean(by or operator()), _clean(reason)
    time = None if lasts is None else round(lasts * SECOND)
    answer = services.store.apply(key, SetLimit(limit, time, by, reason, fitted(part))).answer
    change = "paused" if limit == 0 else f"given the limit {limit}"
    change += "" if lasts is None else f" for {lasts:g} s"
    if limit is None:
        change = "set back to the limit of the code"
    if limit is not None or answer == Applied(True):
        _tell(services, key, part, by, reason, change, limit=limit, lasts=lasts)
    return answer == Applied(True)


def hold(
    services: Services, key: str, lasts: float, *, part: str = "", reason: str = "", by: str = ""
) -> bool:
    """Let no task of a key, or of a part, start for so many seconds; 0 ends all holds.

    An earlier hold that ends later stays. Returns whether the key is held back now, or was before.
    """
    answer = services.store.apply(key, Hold("", "", round(lasts * SECOND), fitted(part))).answer
    change = f"held back for {lasts:g} s" if lasts else "held back no longer"
    if lasts or answer == Applied(True):
        _tell(services, key, part, _clean(by or operator()), _clean(reason), change, held_for=lasts)
    return answer == Applied(True)


def ending(services: Services, key: str, lasts: float | None, part: str = "") -> str:
    """Say how many waiting tasks end without a run while the key, or the part, is paused; "": none does."""
    lasts = _FORESEEN if lasts is None else lasts
    waiting = (place.waiting for place in whole_line(services.store, key))
    part = fitted(part)
    ends = (one.ends_in for one in waiting if part in ("", one.part))
    found = Counter(end is not None and end <= lasts * SECOND for end in ends)
    if not found[True]:
        return ""
    of = f"{found[True]:,} of {found.total():,} waiting tasks give up or expire"
    return f"{of} within the next {duration(lasts)}"


def time_of(text: str) -> float:
    """Return the seconds of a time as people write it: 90, 30s, 5m, 2h, 1d."""
    form = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)", text)
    seconds = float(form[1]) * UNITS[form[2] or "s"] if form else 0
    if not 0 < seconds <= LONGEST:
        raise OptionError(f"{text!r} is no time: write 30s, 5m, 2h or 1d")
    return seconds


def limit_of(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MOST):
        raise OptionError(f"{text!r} is no number from 1 to {MOST}")
    return int(text)


def key_to_limit(services: Services, text: str) -> str:
    """Return the key that an operator means, also an idle one; OptionError: none that can have a limit."""
    store = services.store
    key = busy_key(store, text) or key_of_name(store, text) or _idle_key(services, text)
    refuse_unlimited(services, key)
    return key


def refuse_unlimited(services: Services, key: str) -> None:
    """Refuse a unique key, a window, and any key of a store that keeps no limits."""
    store = services.store
    if not store.capabilities.line:
        raise keeps_no_room(store.url, "an operator")
    if key[:1] != "x":
        kind = {"u": "a unique key", "d": "a window of calls"}.get(key[:1], "no key of a lock")
        raise OptionError(f"{key!r} is {kind}, which has no limit: name the key of its exclusive= option")


def _idle_key(services: Services, text: str) -> str:
    task = services.app.tasks.get(text)
    option = services.exclusive(task) if task else None
    if option is None:
        return text if text[:2] in ("x:", "x=", "u:", "u=", "d:", "d=") else absolute_key(text)
    if isinstance(option.key, str) and "{" not in option.key:
        return absolute_key(option.key)
    if option.key is None and option.names is None:
        return own_key(text)
    raise OptionError(
        f"task {text!r} has a key for each of its arguments: name one, as `locks ls` lists them"
    )


def _clean(text: str) -> str:
    """Return a text as one short line, which each look at the key reads."""
    return " ".join(text.split())[:200]


def _tell(
    services: Services, key: str, part: str, by: str, reason: str, change: str, **fields: float | None
) -> None:
    notices.limited_by_operator(key, part, by, reason, change)
    told: dict[str, object] = {
        "lock": key,
        "by": by,
        "reason": reason,
        **({"part": part} if part else {}),
        **fields,
    }
    events.send_all(services, by, "lock-limited", [told])
