"""Keys and lines as text: the table of `locks ls`, and what `locks show` prints of one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unicodedata import east_asian_width

from celery_exclusive.display import duration, escaped, printable
from celery_exclusive.operate.answers import and_deaths, facts_of, named, renewed_text, worker_text
from celery_exclusive.operate.parts import PartState
from celery_exclusive.operate.states import KeyState
from celery_exclusive.task import LockHolder, WaitingTask

_HEAD = ("KEY", "ARGS", "STATE", "HOLDER", "WORKER", "HELD", "WAITING", "OLDEST", "LIMIT")


def table(states: Iterable[KeyState]) -> Iterator[str]:
    """Yield the lines of a table: a row for each holder, or one row for a key without holder."""
    rows = [_HEAD, *(row for state in states for row in _rows(state))]
    if len(rows) == 1:
        return
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def state_lines(state: KeyState) -> Iterator[str]:
    yield f"lock {named(state)}"
    limit = "no limit; " if state.room.limit is None else f"limit {state.room.limit:,}; "
    known = limit if state.room.is_known else ""
    shut = f"{state.shut:,} for room in their part of the key (per=), " * bool(state.shut)
    yield f"  {state.shown_state}; {known}{state.in_line:,} in line, {shut}{state.aside:,} aside"
    yield from (f"  {line}" for line in state.room.lines())
    for holder in state.holders:
        yield f"  {_holder(holder)}"
    if state.other_holders:
        yield f"  and {state.other_holders:,} more holders"
    yield from (f"  {line}" for line in part_lines(state))


def part_lines(state: KeyState) -> Iterator[str]:
    """Yield a line for each part that a state names, and what an operator has set of it."""
    for part in state.parts:
        yield part_line(part)
        yield from (f"  {line}" for line in part.room.lines())
    if state.other_parts:
        yield f"and {state.other_parts:,} more parts"


def part_line(part: PartState) -> str:
    counts = f"{part.running:,} run, {part.in_line:,} in line, {part.shut:,} for room of it"
    limit = "no limit" if part.room.limit is None else f"limit {part.room.limit:,}"
    weight = f"weight {part.weight}" if part.weight > 1 else ""
    return f"{part.named}: {'; '.join(filter(None, [counts, limit * part.room.is_known, weight]))}"


def place_line(task: WaitingTask) -> str:
    place = "aside" if task.is_aside else "not in line" if task.is_shut else f"{task.place:,} in line"
    args = f" ({printable(task.args)})" if task.args else ""
    first = f"{place}: {printable(task.task_id)}{args}, for {duration(task.age)}"
    return "; ".join([first, *facts_of(task)])


def _holder(holder: LockHolder) -> str:
    worker = worker_text(holder)
    where = f" on {worker}" if worker else ""
    phase: str = holder.phase
    left = f"its lease expires in {duration(holder.remaining)} without renewal"
    if holder.is_dead:
        phase = "dead"
        left = "its lease has expired: a worker that lives recovers its run"
    renewed = "" if holder.renewed is None else renewed_text(holder)
    died = and_deaths(holder.deaths)
    return f"{phase}: {printable(holder.task_id)}{where}, for {duration(holder.age)}{renewed}; {left}{died}"


def _rows(state: KeyState) -> Iterator[tuple[str, ...]]:
    key = (escaped(state.key), printable(state.args or "-"))
    apart = [f"{state.shut} for parts"] * bool(state.shut) + [f"{state.aside} aside"] * bool(state.aside)
    waiting = f"{state.all_waiting}" + (f" ({', '.join(apart)})" if apart else "")
    end = (waiting, _time(state.oldest_wait), state.room.short)
    for holder in state.holders:
        it = "dead" if holder.is_dead else state.state
        yield (*key, it, escaped(holder.task_id), worker_text(holder) or "-", duration(holder.age), *end)
        end = "", "", ""  # once for each key, since a reader adds them up
    if state.other_holders:
        yield (*key, state.state, f"and {state.other_holders} more", "-", "-", *end)
    if not state.holders:
        yield (*key, state.state, "-", "-", "-", *end)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
