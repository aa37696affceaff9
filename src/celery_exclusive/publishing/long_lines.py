"""Warns of lines that grow, in the process whose message joins the line."""

from __future__ import annotations

import time

from celery_exclusive import notices

_MARKS = (100, 1_000, 10_000)
"""The positions in line at which a warning is logged."""
_QUIET = 60
"""Seconds for which a process does not repeat a warning, about a line that goes up and down around a mark."""
_warned: dict[tuple[str, int], float] = {}


def warn_of_long_line(task: str, key: str, position: int) -> None:
    """Warn when task number 100, 1,000 or 10,000 joins a line, once a minute."""
    if position not in _MARKS:
        return
    now = time.monotonic()
    for old in [old for old, at in list(_warned.items()) if at <= now - _QUIET]:
        _warned.pop(old, None)
    if (key, position) not in _warned:
        _warned[key, position] = now
        notices.line_grows(task, key, position)
