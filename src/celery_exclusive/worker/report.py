"""Logs the outcome of a delivery, and warns of lines that grow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.options.preview import given_preview, preview

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Outcome
    from celery_exclusive.options.declared import Exclusive, Unique
    from celery_exclusive.worker.received import Received

_MARKS = (100, 1_000, 10_000)
"""The positions in line at which a warning is logged."""
_QUIET = 60
"""Seconds for which a process does not repeat a warning, about a line that goes up and down around a mark."""
_warned: dict[tuple[str, int], float] = {}


class Report:
    """Logs the outcome of one delivery. `option` is the option of the key in its log lines."""

    def __init__(
        self,
        task: Any,
        delivery: Received,
        option: Exclusive | Unique | None,
        call: tuple[str, Any, Any, Any],
    ) -> None:
        self.task, self.delivery, self.option, self.call = task, delivery, option, call

    @property
    def lock(self) -> str:
        """The key with a preview of the arguments, only for log lines: errors and events have the key."""
        _, args, kwargs, request = self.call
        shown = ""
        if self.option and self.task.app._celery_exclusive.settings.exclusive_preview:
            is_masked = self.delivery.header.masked
            shown = given_preview(request) if is_masked else preview(self.task.run, self.option, args, kwargs)
        return f"{self.delivery.key} ({shown})" if shown else self.delivery.key

    def log(self, outcome: Outcome) -> None:
        """Log the outcome of a delivery whose body does not run. Celery itself logs a failure."""
        if outcome.kind not in ("wait", "drop", "skip"):
            return
        task, id, lock = self.task.name, self.call[0], self._name_of(outcome)
        if outcome.kind == "wait":
            notices.parked(task, id, lock, outcome.position, outcome.by)
            if self.is_of_lock(outcome):
                warn_of_long_line(task, outcome.key, outcome.position)
        elif outcome.kind == "drop":
            notices.stale(task, id, lock)
        elif outcome.reason == "duplicate":
            notices.duplicate(task, id, outcome.key, outcome.existing_id)
        elif outcome.reason == "full":
            notices.full(task, id, lock, outcome.waiting, outcome.by)
        else:
            notices.skipped(task, id, lock, outcome.by)

    def rescheduled(self, outcome: Outcome, pause: float) -> None:
        """Log that the message is delivered again later."""
        notices.rescheduled(self.task.name, self.call[0], self._name_of(outcome), outcome.by, pause)

    def _name_of(self, outcome: Outcome) -> str:
        return self.lock if self.is_of_lock(outcome) else outcome.key

    def is_of_lock(self, outcome: Outcome) -> bool:
        """Whether the lock has decided the outcome, and not the unique key."""
        return self.delivery.exclusive is not None and outcome.key == self.delivery.exclusive.key


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
