"""The list of keys that have a holder or a line, as a table and as objects of JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from unicodedata import east_asian_width

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped, printable
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
        "line": [
            {
                "id": task_id(one.id),
                "age": round(one.age / SECOND, 3),
                "offered": one.is_offered,
                "not_before": None if one.not_before is None else round(one.not_before / SECOND, 3),
                "ends_in": None if one.ends_in is None else round(one.ends_in / SECOND, 3),
            }
            for one in snapshot.line
        ],
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


def state_of(snapshot: Snapshot) -> Iterator[str]:
    """Yield the lines that describe one key: its holders, and the first tasks in line."""
    for owner in snapshot.holders:
        left, id = duration(owner.remaining), printable(task_id(owner.id))
        yield f"{owner.phase}: {id}, for {duration(owner.age)}; its lease expires in {left} without renewal"
    if snapshot.others:
        yield f"and {snapshot.others} more holders"
    for place, one in enumerate(snapshot.line, 1):
        facts = [f"{place} in line: {printable(task_id(one.id))}, for {duration(one.age)}"]
        if one.is_offered:
            facts.append("its turn has come, and its message is on the way to a worker")
        if one.not_before is not None:
            facts.append(f"waits for newer calls, not before {duration(one.not_before)} from now")
        if one.ends_in is not None:
            facts.append(f"gives up or expires in {duration(one.ends_in)}")
        yield "; ".join(facts)
    if snapshot.waiting > len(snapshot.line):
        yield f"and {snapshot.waiting - len(snapshot.line)} more in line"
    if snapshot.aside:
        yield f"{snapshot.aside} aside: no worker accepts them, or each is about to end without a run"


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
