"""When each task was taken by a child, began and ended: in a file that all processes of a worker share."""

from __future__ import annotations

import mmap
import time
from array import array
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from celery import signals
from celery.app import trace

from tests.servers import wait_until

_SPELL, _END = Struct("ddd"), Struct("d")


class Spell(NamedTuple):
    """The times of one task, by a clock that all processes share; it begins when its body has its lock."""

    taken: float
    begun: float
    ended: float


def span(spells: list[Spell]) -> float:
    """Seconds from the first begin to the last end."""
    return max(spell.ended for spell in spells) - min(spell.begun for spell in spells)


class Tally:
    """As many spells as the file has room for, each at the number of its task."""

    def __init__(self, path: str | Path, size: int = 0) -> None:
        self.path = Path(path)
        if size:
            self.path.write_bytes(bytes(size * _SPELL.size))
        with self.path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))

    def begin(self, number: int) -> None:
        now = time.monotonic()
        _SPELL.pack_into(self._memory, number * _SPELL.size, _Taken.at or now, now, 0.0)

    def end(self, number: int) -> None:
        _END.pack_into(self._memory, number * _SPELL.size + 2 * _END.size, time.monotonic())

    def ended(self) -> int:
        """Count the tasks that have ended."""
        ends = array("d", self._memory[:])[2::3]
        return len(ends) - ends.count(0.0)

    def spells(self) -> list[Spell]:
        return [Spell(*times) for times in _SPELL.iter_unpack(self._memory[:])]

    def wait_for_end(self, count: int) -> None:
        wait_until(lambda: self.ended() >= count, f"the end of {count} tasks", 600)

    def wait_for_begin_of(self, number: int) -> float:
        """Wait until a task has begun, and return when."""
        wait_until(lambda: self.spells()[number].begun > 0, f"the begin of task {number}", 600)
        return self.spells()[number].begun


class _Taken(dict[str, Any]):
    """The tasks of a child's tracer; it looks one up when it has taken a message."""

    at = 0.0

    def __getitem__(self, name: str) -> Any:
        _Taken.at = time.monotonic()
        return super().__getitem__(name)


@signals.worker_process_init.connect
def _note_what_is_taken(**_: Any) -> None:
    tasks, *others = trace._localized
    trace._localized[:] = [_Taken(tasks), *others]
