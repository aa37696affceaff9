"""Warns of lines that grow: when task number 100, 1,000 or 10,000 joins one."""

from __future__ import annotations

import time

from celery_exclusive import notices

_MARKS = (100, 1_000, 10_000)
_QUIET = 60
"""Seconds for which a process does not repeat itself, about a line that goes up and down around a mark."""
_told: dict[tuple[str, int], float] = {}


def look(task: str, key: str, position: int) -> None:
    """Warn if this place in line is worth it, once a minute."""
    if position not in _MARKS:
        return
    now = time.monotonic()
    for old in [old for old, at in list(_told.items()) if at <= now - _QUIET]:
        _told.pop(old, None)
    if (key, position) not in _told:
        _told[key, position] = now
        notices.line_grows(task, key, position)
