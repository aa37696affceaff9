"""The one place that tells people what happened, in the shape of Celery's own log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Rival
from celery_exclusive.errors import ExclusiveError

logger = logging.getLogger("celery_exclusive")


def skipped(task: str, id: str, lock: str, by: Sequence[Rival]) -> None:
    logger.info("Task %s[%s] skipped: lock %s %s", task, id, lock, _held(by))


def parked(task: str, id: str, lock: str, position: int, by: Sequence[Rival]) -> None:
    logger.info("Task %s[%s] parked: number %d in line for lock %s %s", task, id, position, lock, _held(by))


def stale(task: str, id: str, lock: str) -> None:
    logger.info(
        "Task %s[%s] dropped: another copy of this message has run or runs under lock %s", task, id, lock
    )


def lease_lost(task: str, id: str, lock: str) -> None:
    logger.error(
        "Task %s[%s] lost its lease on lock %s before it ended: it was not renewed in time, and another "
        "task may have run beside it",
        task,
        id,
        lock,
    )


def stepped_aside(key: str, id: str) -> None:
    logger.warning(
        "Task [%s] steps aside in the line of lock %s: nobody took its message. Is there a worker for its "
        "queue, with this task registered?",
        task_id(id),
        key,
    )


def store_wait(task: str, id: str, error: Exception) -> None:
    logger.warning("Task %s[%s] waits for its lock's store: %s", task, id, error)


def given_back(task: str, id: str, error: Exception) -> None:
    logger.error("Task %s[%s] goes back to the broker: its lock's store does not answer: %s", task, id, error)


def trouble(what: str, error: BaseException) -> None:
    logger.warning("%s: %s", what, error)


class Trouble:
    """Around what a thread does again and again: it outlives errors, and tells when they begin and end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.lasts = False

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception) and not self.lasts:
            logger.warning("%s: %s", self.what, error, exc_info=not isinstance(error, ExclusiveError))
        elif error is None and self.lasts:
            logger.info("over: %s", self.what)
        self.lasts = error is not None
        return isinstance(error, Exception)


def task_id(id: str) -> str:
    """The task's id within a claim's id."""
    return id.rpartition("/")[0]


def _held(by: Sequence[Rival]) -> str:
    if not by:
        return "free, others come first"
    rival, others = by[0], len(by) - 1
    what = (
        f"held by {task_id(rival.id)} for {rival.age / SECOND:.1f}s"
        if rival.age
        else f"kept for {task_id(rival.id)}"
    )
    return f"{what} and {others} more" if others else what
