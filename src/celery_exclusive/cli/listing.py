"""The list of keys that have a holder or a line, as a table and as objects of JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from unicodedata import east_asian_width

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped
from celery_exclusive.options.key_text import own_key, without_hash
from celery_exclusive.services import Services
from celery_exclusive.stores.base import Snapshot, states

Lock = tuple[str, str | None, Snapshot]
"""A key, its task and its state. The task is None for an absolute key, and for a task of another app."""
_HEAD = ("KEY", "TASK", "HOLDER", "STATE", "AGE", "LEASE LEFT", "WAITING", "FENCE")
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def listing(services: Services, keys: Collection[str]) -> Iterator[Lock]:
    """Yield the states of these keys, in order, without those that are free by now."""
    tasks = {own_key(name): name for name in services.app.tasks}
    for key, snapshot in states(services.store, keys):
        if snapshot.is_busy:
            yield key, tasks.get("x" + without_hash(key[1:])), snapshot


def record(key: str, task: str | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the object that `--json` prints. Times are seconds."""
    return {
        "key": key,
        "task": task,
        "state": snapshot.state,
        "holders": [
            {
                "id": task_id(owner.id),
                "age": round(owner.age / SECOND, 3),
                "lease_left": round(owner.remaining / SECOND, 3),
                "fence": owner.fence,
            }
            for owner in snapshot.holders
        ],
        "waiting": snapshot.all_waiting,
        "aside": snapshot.aside,
        **({"other_holders": snapshot.others} if snapshot.others else {}),
        **({"problem": snapshot.problem} if snapshot.problem else {}),
    }


def table(locks: Iterable[Lock]) -> Iterator[str]:
    """Yield the lines of a table: a row for each holder, or one row for a key without holder."""
    rows = [_HEAD, *(row for lock in locks for row in _rows(*lock))]
    if len(rows) == 1:
        return
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def duration(microseconds: int) -> str:
    """Return a duration as text: 12s, 3m04s, 2h05m, 3d04h."""
    seconds = microseconds // SECOND
    for whole, unit, part, smaller_unit in _UNITS:
        if seconds >= whole:
            return f"{seconds // whole}{unit}{seconds % whole // part:02}{smaller_unit}"
    return f"{seconds}s"


def _rows(key: str, task: str | None, snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    name, state = (escaped(key), escaped(task or "-")), snapshot.state
    waiting = str(snapshot.all_waiting)
    if snapshot.aside:
        waiting += f" ({snapshot.aside} aside)"
    for owner in snapshot.holders:
        age, left = duration(owner.age), duration(owner.remaining)
        yield (*name, escaped(task_id(owner.id)), state, age, left, waiting, str(owner.fence))
    if snapshot.others:
        yield (*name, f"and {snapshot.others} more", state, "-", "-", waiting, "-")
    if not snapshot.holders:
        yield (*name, "-", state, "-", "-", waiting, "-")


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
