"""The waits of a run for a store that does not answer, at its beginning and at its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import outcomes
from celery_exclusive.core.operations import Acquire, KeyOperation
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.attempts import Attempts
from celery_exclusive.outcomes import Subject
from celery_exclusive.stores.base import Reply
from celery_exclusive.system.deadline import Budget, deadline

if TYPE_CHECKING:
    from celery_exclusive.worker.context import WorkerContext


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5
"""Seconds between two tries: each pause is twice as long as the pause before it."""
_LOOK = 0.3
"""Seconds between two checks whether the worker stops."""
_LAST = 3
"""Seconds for which a run still waits when its worker stops."""
_SHORTEST = 0.1
"""The least seconds for a store call, even if no time is left."""


class StoreWait:
    """Sends the requests of one run to the store. While the store is down, the run waits in its worker slot.

    `failures`: the number of requests without an answer. `hard`, `soft`: the time limits in seconds. `end`:
    the budget of the end. A hard limit must not strike at the end: finished work would be reported as failed,
    or run again.

    Parameters:
        worker: the context of the worker, which may stop meanwhile.
        is_for_any: whether another worker can execute the delivery.
    """

    def __init__(
        self, task: Any, request: dict[str, Any], worker: WorkerContext, *, is_for_any: bool
    ) -> None:
        self.task, self.request, self.worker, self.is_for_any = task, request, worker, is_for_any
        self.is_unanswered = False
        self.failures = 0
        self.began = time.monotonic()
        hard, soft = request.get("timelimit") or (None, None)
        longest, longest_soft = worker.roster.time_limits
        self.hard: float | None = hard or task.time_limit or longest
        self.soft: float | None = soft or task.soft_time_limit or longest_soft
        self.end = Budget(limit_at=self.began + self.hard if self.hard else None)

    def apply(self, key: str, operation: KeyOperation) -> tuple[Reply, BaseException | None]:
        """Return the store's reply, and the exception that a signal raised meanwhile, if any."""
        seconds, began, pause = self.seconds_to_begin(), time.monotonic(), _FIRST_PAUSE
        attempts = Attempts()

        def is_over(pause: float = 0) -> bool:
            longest = min(seconds, _LAST) if self.is_hurried else seconds
            return time.monotonic() + pause > began + longest

        with deadline(seconds):
            while True:
                try:
                    return attempts.make(partial(self._ask, key, operation)), attempts.interruption
                except StoreUnavailable as error:
                    self.failures += 1
                    if is_over(pause):
                        raise
                    if pause == _FIRST_PAUSE:
                        outcomes.store_wait(Subject(self.task.name, self.request["id"], key), error)
                    try:
                        _sleep(pause * random.uniform(0.5, 1.5), unless=is_over)
                    except SoftTimeLimitExceeded as limit:
                        error.interruption = limit
                        raise error  # noqa: B904 - its cause is the driver's error
                    if is_over():
                        raise
                pause = min(pause * 2, _LONGEST_PAUSE)

    def seconds_to_begin(self) -> float:
        """Return the seconds to wait. Time limits run meanwhile, and must not end a task before it begins."""
        seconds = float(self.worker.services.settings.exclusive_store_wait)
        for limit in (self.hard, self.soft):
            if limit:
                left = limit / 2 - (time.monotonic() - self.began)
                seconds = min(seconds, max(left, _SHORTEST))
        if self.worker.roster.is_stopping and self.is_for_any:  # others may be queued behind it in the pool
            seconds = min(seconds, _LAST)
        return seconds

    @property
    def is_hurried(self) -> bool:
        """Whether the worker stops and another one can execute the delivery."""
        return self.worker.is_stopping and self.is_for_any

    def _ask(self, key: str, operation: KeyOperation) -> Reply:
        """Send a request, after a failure as a redelivered copy's.

        The store may have executed a request whose answer is lost, and an earlier request may arrive last.
        """
        if not isinstance(operation, Acquire):
            return self.worker.services.store.apply(key, operation)
        if self.is_unanswered:
            operation = replace(operation, redelivered=True)
        was_unanswered, self.is_unanswered = self.is_unanswered, True  # until the answer is here
        reply = self.worker.services.store.apply(key, operation)
        self.is_unanswered = was_unanswered
        return reply


def _sleep(seconds: float, unless: Callable[[], bool]) -> None:
    """Sleep for so many seconds, but end when the caller has no more time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not unless():
        time.sleep(min(left, _LOOK))
