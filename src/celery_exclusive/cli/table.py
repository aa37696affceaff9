"""How locks look on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

from celery_exclusive import notices
from celery_exclusive.cli.listing import Lock
from celery_exclusive.core.document import SECOND

_HEAD = ("KEY", "TASK", "HOLDER", "STATE", "AGE", "LEASE LEFT", "WAITING", "FENCE")
_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def table(locks: Iterable[Lock]) -> Iterator[str]:
    """The lines of a table, one row for each holder, or one for a key that only has a line."""
    rows = [_HEAD, *(row for lock in locks for row in _rows(lock))]
    if len(rows) == 1:
        return
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def escaped(text: str) -> str:
    r"""Show what a terminal would obey instead of print, and the backslash, as in Python: `\x1b`, `\\`.

    Everything else stays, so that an ordinary key looks as it is.
    """
    return printable(text.replace("\\", r"\\"))


def printable(text: str) -> str:
    """Show what a terminal would obey, and leave backslashes alone: for texts that nobody reads back."""
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def unescaped(text: str) -> str:
    r"""Undo `escaped`; a backslash that begins none of its sequences stays."""
    return _ESCAPE.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), text)


def duration(microseconds: int) -> str:
    """A time for people: 12s, 3m04s, 2h05m, 3d04h."""
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
    waiting = f"{lock.waiting} ({aside} aside)" if aside else str(lock.waiting)
    for rival in lock.snapshot.holders:
        holder = escaped(notices.task_id(rival.id))
        age, left = duration(rival.age), duration(rival.remaining)
        yield (key, task, holder, lock.state, age, left, waiting, str(rival.fence))
    if not lock.snapshot.holders:
        yield (key, task, "-", lock.state, "-", "-", waiting, "-")


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
