"""Interrupts the bodies of superseded runs after their `grace`, in the children of a prefork worker.

The main process sends the signal of a soft time limit. Its child raises it only in the body that was meant: a
signal may come late, when another task runs there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from signal import getsignal
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_exclusive.seams.python import set_signal_handler
from celery_exclusive.system.signals import SOFT_LIMIT, when_ignored
from celery_exclusive.worker.roster import ChildSlot, Record, Roster, Slot

if TYPE_CHECKING:
    from celery_exclusive.run import Run
    from celery_exclusive.stores.base import Store


def look_every(grace: float | None) -> float:
    """Return the seconds between two looks at a run with this grace."""
    return math.inf if grace is None else max(grace / 4, 1)


class Interrupter:
    """Looks in the main process which runs newer calls have superseded, and since when."""

    def __init__(self, store: Store, roster: Roster) -> None:
        self._store, self._roster = store, roster
        self._since: dict[str, float] = {}

    def look(self, runs: Sequence[Slot]) -> None:
        """Interrupt, once, the bodies whose grace is over."""
        locks = [
            (slot, lock.key, slot.claims.grace)
            for slot in (runs if self._roster.is_shared else ())
            if (lock := slot.claims.exclusive) and slot.claims.grace is not None and lock in slot.held
        ]
        seen = self._store.inspect_all([key for _, key, _ in locks]) if locks else []
        now, before, self._since = time.monotonic(), self._since, {}
        for (slot, _, grace), snapshot in zip(locks, seen, strict=True):
            token = slot.claims.token
            since = before.get(token, now)
            if since < math.inf and snapshot.newer_than(slot.claims.id) is None:
                continue  # none waits, or not any more
            self._since[token] = since
            if now - since >= grace:
                self._since[token] = math.inf
                self._roster.interrupt(slot)


class interruptible:  # noqa: N801 - callers read it as a function
    """Let the main process interrupt this run within the block, if its option has a `grace`."""

    _current: tuple[str, Run] | None = None
    _is_heard = False

    def __init__(self, run: Run, slot: Slot) -> None:
        self._run, self._slot = run, slot

    def __enter__(self) -> None:
        if isinstance(self._slot, ChildSlot) and self._slot.claims.grace is not None:
            _listen(self._slot.record)
            interruptible._current = self._slot.claims.token, self._run

    def __exit__(self, *_: object) -> None:
        interruptible._current = None


def _listen(record: Record) -> None:
    """Handle the signal from now on, also after the run: it may come late, when another task runs here."""
    if interruptible._is_heard or SOFT_LIMIT is None:
        return
    record.take_interruption()  # of a child before this one, with the same number

    def handle(*signal: Any) -> None:
        if not (token := record.take_interruption()):
            before(*signal)  # of a soft time limit
            return
        of, run = interruptible._current or ("", None)
        if run is None or of != token or (run.body_begun and run.body_over):
            return
        run.is_interrupted = True
        if run.body_begun:
            raise SoftTimeLimitExceeded
        run.failure = SoftTimeLimitExceeded()

    before: Any = getsignal(SOFT_LIMIT)
    interruptible._is_heard = True
    set_signal_handler(SOFT_LIMIT, handle)
    when_ignored.append(record.take_interruption)
