"""Prints locks as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

from celery_exclusive.cli.listing import Lock
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped

_HEAD = ("KEY", "TASK", "HOLDER", "STATE", "AGE", "LEASE LEFT", "WAITING", "FENCE")


def table(locks: Iterable[Lock]) -> Iterator[str]:
    """Yield the lines of a table: a row for each holder, or one row for a key without holder."""
    rows = [_HEAD, *(row for lock in locks for row in _rows(lock))]
    if len(rows) == 1:
        return
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def duration(microseconds: int) -> str:
    """Return a duration as text: 12s, 3m04s, 2h05m, 3d04h."""
    seconds = microseconds // SECOND
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds // 60 % 60:02}m"
    return f"{seconds // 86400}d{seconds // 3600 % 24:02}h"


def _rows(lock: Lock) -> Iterator[tuple[str, ...]]:
    key, task = escaped(lock.key), escaped(lock.task or "-")
    aside = lock.snapshot.aside
    waiting = f"{lock.snapshot.all_waiting} ({aside} aside)" if aside else str(lock.snapshot.all_waiting)
    for owner in lock.snapshot.holders:
        holder = escaped(task_id(owner.id))
        age, left = duration(owner.age), duration(owner.remaining)
        yield (key, task, holder, lock.snapshot.state, age, left, waiting, str(owner.fence))
    if not lock.snapshot.holders:
        yield (key, task, "-", lock.snapshot.state, "-", "-", waiting, "-")


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
