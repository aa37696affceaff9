"""Tasks that are played at one key in virtual time, for facts that its step does not know."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

from celery_exclusive.core.operations import Reap
from celery_exclusive.core.records import SECOND
from tests.unit.stepping import Key

LONGEST = 3_000
"""The events after which a play is cut off: more than three times as many as any play that ends has."""


class Timed:
    """What happens at a key, each at its time. `faults` are what the play has seen.

    An event calls the method with its name. Only `wake` and `due` of the step bring a waiting task back.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.order, self.events = count(), list[tuple[int, int, str, Any]]()
        self.ended, self.sweep_at, self.faults = set[int](), 0, list[str]()

    def plan(self, at: int, what: str, of: Any = None) -> None:
        heappush(self.events, (at, next(self.order), what, of))

    def play(self, tasks: int) -> None:
        """Let all happen until a fault is seen: then so many tasks have ended."""
        for _ in range(LONGEST):
            if not self.events or self.faults:
                break
            self.key.now, _, what, of = heappop(self.events)
            getattr(self, f"_{what}")(of)
            self._judge_now()
            self._plan_sweep()
        if len(self.ended) < tasks and not self.faults:
            self.faults.append(f"{len(self.ended)} of {tasks} ended")

    def _do(self, operation: Any) -> Any:
        raise NotImplementedError

    def _judge_now(self) -> None:
        """Look at the key after each event."""

    def _sweep(self, at: int) -> None:
        if at == self.sweep_at:
            self.sweep_at = 0
            self._do(Reap())

    def _plan_sweep(self) -> None:
        due = self.key.last.due
        at = None if due is None else max(due, self.key.now + SECOND // 50)
        if at is not None and (not self.sweep_at or at < self.sweep_at):
            self.sweep_at = at
            self.plan(at, "sweep", at)
