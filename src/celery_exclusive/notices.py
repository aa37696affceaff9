"""Log lines: the one place that tells operators what happened, in the form of Celery's own log lines.

Every record is one printable line: keys, ids and names in it were written by others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_exclusive import events
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Owner
from celery_exclusive.display import OneLine
from celery_exclusive.errors import ExclusiveError, UnreadableKey
from celery_exclusive.system.threads import at_home

if TYPE_CHECKING:
    from celery_exclusive.services import Services


logger = logging.getLogger("celery_exclusive")
logger.addFilter(OneLine())


def skipped(task: str, id: str, lock: str, by: Sequence[Owner]) -> None:
    logger.info("Task %s[%s] skipped: lock %s %s", task, id, lock, held(by))


def duplicate(task: str, id: str, key: str, existing_id: str) -> None:
    logger.info("Task %s[%s] skipped: unique key %s is that of %s", task, id, key, existing_id)


def not_sent(task: str, key: str, existing_id: str) -> None:
    logger.info("Task %s was not sent: unique key %s is that of %s", task, key, existing_id)


def unleased(task: str, id: str, key: str, error: Exception) -> None:
    logger.error(
        "Task %s[%s] is sent without unique key %s, as on_store_error='allow' says, and maybe twice: %s",
        task,
        id,
        key,
        error,
    )


def rescheduled(task: str, id: str, lock: str, by: Sequence[Owner], pause: float) -> None:
    logger.info("Task %s[%s] rescheduled in %.1f s: lock %s %s", task, id, pause, lock, held(by))


def unlocked(task: str, id: str, lock: str) -> None:
    logger.warning(
        "Task %s[%s] has waited in line for lock %s, and runs without it: the task has no exclusive= option "
        "in this worker. Another release of its code gave it one",
        task,
        id,
        lock,
    )


def parked(task: str, id: str, lock: str, position: int, by: Sequence[Owner]) -> None:
    where = f"number {position} in line" if position else "behind its own run"
    logger.info("Task %s[%s] parked: %s for lock %s %s", task, id, where, lock, held(by))


def stale(task: str, id: str, lock: str) -> None:
    logger.info(
        "Task %s[%s] dropped: another copy of this message has run or runs under lock %s", task, id, lock
    )


def lease_lost(services: Services, task: str, id: str, lock: str) -> None:
    logger.error(
        "Task %s[%s] lost its lease on lock %s before it ended: it was not renewed in time, or was "
        "released by force, and another task may have run beside it",
        task,
        id,
        lock,
    )
    events.send(services, "lock-lost", uuid=id, name=task, lock=lock)


def waits(who: str, lock: str, by: Sequence[Owner]) -> None:
    logger.info("%s waits for lock %s %s", who, lock, held(by))


def lost(who: str, lock: str) -> None:
    logger.error(
        "%s lost its lease on lock %s before it gave it back: it was not renewed in time, or was released by "
        "force, and somebody else may have held it meanwhile",
        who,
        lock,
    )


def forgotten(lock: str, ttl: float) -> None:
    at_home(
        logger.warning,
        "a lock() was thrown away without release: lock %s will be free in %g s. Use `with lock(...)`, or "
        "keep the object and release() it",
        lock,
        ttl,
    )


def forgot(url: str, locks: Sequence[str]) -> None:
    at_home(
        logger.error,
        "store %s has lost its data: others may have held %s meanwhile; what nobody holds now was put back",
        url,
        ", ".join(locks),
    )


def full(task: str, id: str, lock: str, waiting: int, by: Sequence[Owner]) -> None:
    logger.info(
        "Task %s[%s] skipped: the line of lock %s is full, with %d waiting; %s",
        task,
        id,
        lock,
        waiting,
        held(by),
    )


def line_grows(task: str, lock: str, waiting: int) -> None:
    logger.warning(
        "%d wait in line for lock %s of task %s: they come faster than they run. Drop some by max_waiting= "
        "with on_full=, or by on_conflict='skip'; or let more run at once by limit=",
        waiting,
        lock,
        task,
    )


def elsewhere(sender: str, key: str, url: str, prefix: str) -> None:
    logger.warning(
        "messages for lock %s come from a publisher, %s, whose locks are kept elsewhere (or in a store that "
        "has lost its data since): lock_state() and lock() there do not see this worker's leases, in %s with "
        "exclusive_prefix %s. Set the same exclusive_store and exclusive_prefix on both",
        key,
        sender,
        url,
        prefix,
    )


def more_elsewhere(count: int) -> None:
    logger.warning(
        "messages have come from %d more publishers whose locks are kept elsewhere, or which say so", count
    )


def unreadable(error: UnreadableKey, count: int) -> None:
    at_home(
        logger.error,
        "%s. Until then the reaper leaves it alone, and no task can take it (this worker has met %d such)",
        error,
        count,
    )


def stepped_aside(key: str, id: str) -> None:
    logger.warning(
        "Task [%s] steps aside in the line of lock %s: nobody took its message. Is there a worker for its "
        "queue, with this task registered?",
        task_id(id),
        key,
    )


def no_roster(path: str) -> None:
    logger.error(
        "%s is gone, by which a child tells its worker which leases to renew: they end after their ttl. If "
        "this is a child of a worker's pool, restart the worker",
        path,
    )


def queue_deleted(id: str, queue: str, lock: str) -> None:
    logger.warning(
        "Task [%s] leaves the line of lock %s: its queue %s was deleted when its worker ended",
        id,
        lock,
        queue,
    )


def forged(key: str, id: str) -> None:
    at_home(
        logger.error,
        "the message of %r in the line of lock %r is not published but removed: it was not signed with this "
        "exclusive_secret for this place, so somebody else has written it to the store, or a process "
        "without the secret",
        id,
        key,
    )


def unsigned(task: str, sender: str) -> None:
    logger.warning(
        "a message of task %s from %r has a header of celery-exclusive without a valid signature, which is "
        "ignored, as those of all such messages are: give its publisher the same exclusive_secret and "
        "exclusive_prefix. Its keys are computed here",
        task,
        sender,
    )


def store_wait(task: str, id: str, error: Exception) -> None:
    logger.warning("Task %s[%s] waits for its lock's store: %s", task, id, error)


def given_back(services: Services, task: str, id: str, lock: str, error: Exception) -> None:
    logger.error("Task %s[%s] goes back to the broker: its lock's store does not answer: %s", task, id, error)
    events.send(services, "lock-given-back", uuid=id, name=task, lock=lock, reason=str(error))


def unguarded(services: Services, task: str, id: str, lock: str, error: Exception) -> None:
    logger.error(
        "Task %s[%s] runs without lock %s, as on_store_error='allow' says, and maybe beside another: %s",
        task,
        id,
        lock,
        error,
    )
    events.send(services, "lock-unguarded", uuid=id, name=task, lock=lock, reason=str(error))


def amnesia(services: Services, restored: int) -> None:
    url = services.store.url
    at_home(
        logger.error,
        "store %s has lost its data: who waited in line there is lost with it, and others may have run "
        "beside those who held a lock. %d of this worker's leases were put back",
        url,
        restored,
    )
    events.send(services, "lock-amnesia", store=url, restored=restored)


def cannot_start(error: Exception) -> None:
    logger.critical("the worker does not start: %s", error)


def trouble(what: str, error: BaseException) -> None:
    logger.warning("%s: %s", what, error)


def unpaid(key: str, count: int) -> None:
    logger.warning(
        "%s unique keys could not be given back, %s first, and are free only when their time is over",
        count,
        key,
    )


class Trouble:
    """Around what a thread does again and again: it outlives errors, and tells when they begin and end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.lasts = False

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception) and not self.lasts:
            told = None if isinstance(error, ExclusiveError) else error
            at_home(logger.warning, "%s: %s", self.what, error, exc_info=told)
        elif error is None and self.lasts:
            at_home(logger.info, "over: %s", self.what)
        self.lasts = error is not None
        return isinstance(error, Exception)


def task_id(id: str) -> str:
    """The task's id within a claim's id."""
    return id.rpartition("/")[0]


def held(by: Sequence[Owner]) -> str:
    """Who has a place, and for how long."""
    if not by:
        return "free, others come first"
    owner, others = by[0], len(by) - 1
    what = (
        f"held by {task_id(owner.id)} for {owner.age / SECOND:.1f}s"
        if owner.fence
        else f"kept for {task_id(owner.id)}"
    )
    return f"{what} and {others} more" if others else what
