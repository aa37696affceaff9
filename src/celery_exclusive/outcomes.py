"""The events of a task at its lock: each function sends the outcome, if it is one, and writes the log line.

The facts of a line are fields of its record, too (`extra`). A run that meets no other owner has no line. An
outcome with an error (`fails`) has none either: Celery or the caller logs it.

No outcome is made while `lock_outcome` has no receiver: callers of `acquired` and `released` look first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from celery_exclusive import events
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Owner
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import printable
from celery_exclusive.notices import because, gave_up_waiting, held, logger
from celery_exclusive.signals import Kind, LockOutcome, lock_outcome, send
from celery_exclusive.system.threads import run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Admission
    from celery_exclusive.reasons import Reason
    from celery_exclusive.services import Services


@dataclass(frozen=True, slots=True)
class Subject:
    """A task, or a `lock()`, and the key at which something happens to it.

    `task_name` None: unknown, or a `lock()`, whose `task_id` is "lock:host:pid". `shown`: the key with a
    preview of the arguments. `tell`: sends an outcome, now or later.
    """

    task_name: str | None
    task_id: str | None
    lock_key: str
    shown: str = ""
    tell: Callable[[LockOutcome], None] = send

    def __str__(self) -> str:
        return f"Task {self.task_name}[{self.task_id}]" if self.task_name else str(self.task_id)

    @property
    def lock(self) -> str:
        return self.shown or self.lock_key


def acquired(subject: Subject, wait_s: float | None) -> None:
    _tell(subject, "acquired", wait_s=wait_s)


def released(subject: Subject, held_s: float) -> None:
    _tell(subject, "released", holder_id=subject.task_id, held_s=held_s)


def parked(
    subject: Subject, position: int, by: Sequence[Owner], others: int, *, in_parts: bool = False
) -> None:
    """Log that the store has the message. A copy behind its own run is no outcome: the task runs.

    `in_parts`: the position is the last that it may have.
    """
    if position:
        where = f"among the first {position} in line" if in_parts else f"number {position} in line"
        extra = _tell(subject, "waited", "in_line", by, place=position)
    else:
        where, extra = "behind its own run", _fields(subject, "running", by)
    logger.info("%s parked: %s for lock %s %s", subject, where, subject.lock, held(by, others), extra=extra)


def joined_line(subject: Subject, position: int, by: Sequence[Owner]) -> None:
    if lock_outcome.receivers:
        _tell(subject, "waited", "in_line", by, place=position)


def rescheduled(
    subject: Subject, by: Sequence[Owner], others: int, pause: float, wait_s: float | None
) -> None:
    extra = _tell(subject, "waited", "held", by, wait_s=wait_s)
    logger.info(
        "%s rescheduled in %.1f s: lock %s %s", subject, pause, subject.lock, held(by, others), extra=extra
    )


def waits(subject: Subject, by: Sequence[Owner], others: int) -> None:
    extra = _tell(subject, "waited", "held", by)
    logger.info("%s waits for lock %s %s", subject, subject.lock, held(by, others), extra=extra)


def not_acquired(subject: Subject, by: Sequence[Owner], wait_s: float) -> None:
    _tell(subject, "refused", "held", by, wait_s=wait_s)


def ended_without_body(
    subject: Subject, outcome: Admission, give_up_after: float | None, wait_s: float | None
) -> None:
    """Log a task that is skipped or fails in place of its body."""
    fails, by, others = outcome.kind == "fail", outcome.by, outcome.others
    if outcome.reason == "duplicate":
        duplicate(subject, outcome.existing_id, fails=fails)
    elif outcome.reason == "replaced":
        replaced(subject, outcome.existing_id)
    elif outcome.reason == "superseded":
        superseded(subject, outcome.existing_id, fails=fails)
    elif outcome.reason == "given_up":
        waited = give_up_after if wait_s is None else wait_s
        given_up(subject, give_up_after, by, others, waited, fails=fails)
    elif outcome.reason == "full":
        full(subject, outcome.waiting, by, others, fails=fails)
    else:
        skipped(subject, by, others, fails=fails)


def skipped(subject: Subject, by: Sequence[Owner], others: int, *, fails: bool) -> None:
    extra = _tell(subject, "refused" if fails else "skipped", "held", by)
    if not fails:
        logger.info("%s skipped: lock %s %s", subject, subject.lock, held(by, others), extra=extra)


def full(subject: Subject, waiting: int, by: Sequence[Owner], others: int, *, fails: bool) -> None:
    extra = _tell(subject, "full", "full", by)
    if not fails:
        text = "%s skipped: the line of lock %s is full, with %d waiting; the lock is %s"
        logger.info(text, subject, subject.lock, waiting, held(by, others), extra=extra)


def given_up(
    subject: Subject,
    seconds: float | None,
    by: Sequence[Owner],
    others: int,
    wait_s: float | None,
    *,
    fails: bool,
) -> None:
    extra = _tell(subject, "given_up", "given_up", by, wait_s=wait_s)
    if not fails:
        waited = gave_up_waiting(subject.lock, seconds, by, others)
        logger.info("%s skipped: it %s", subject, waited, extra=extra)


def replaced(subject: Subject, newer: str) -> None:
    extra = _tell(subject, "replaced", "replaced", holder_id=newer)
    text = "%s skipped: the newer task %s has taken its place in the line of lock %s"
    logger.info(text, subject, newer, subject.lock, extra=extra)


def superseded(subject: Subject, newer: str, *, fails: bool) -> None:
    extra = _tell(subject, "superseded", "superseded", holder_id=newer)
    if not fails:
        text = "%s skipped: the newer task %s has superseded it at lock %s"
        logger.info(text, subject, newer, subject.lock, extra=extra)


def duplicate(subject: Subject, existing_id: str, *, fails: bool) -> None:
    extra = _tell(subject, "duplicate", "duplicate", holder_id=existing_id)
    if not fails:
        text = "%s skipped: unique key %s is held by %s"
        logger.info(text, subject, subject.lock_key, existing_id, extra=extra)


def joined(subject: Subject, existing_id: str) -> None:
    extra = _tell(subject, "duplicate", "duplicate", holder_id=existing_id)
    text = "%s ends as %s has, which held unique key %s"
    logger.info(text, subject, existing_id, subject.lock_key, extra=extra)


def not_published(task: str, key: str, existing_id: str, *, fails: bool) -> None:
    if not (lock_outcome.receivers or logger.isEnabledFor(logging.INFO)):
        return  # a publisher may have thousands a second
    extra = _tell(Subject(task, None, key), "duplicate", "duplicate", holder_id=existing_id)
    if not fails:
        text = "Task %s was not published: unique key %s is held by %s"
        logger.info(text, task, key, existing_id, extra=extra)


def lease_lost(services: Services, subject: Subject, held_s: float) -> None:
    extra = _tell(subject, "lost", holder_id=subject.task_id, held_s=held_s)
    text = (
        "%s lost its lease on lock %s before its body ended: the lease expired without a renewal, "
        "or was released by force. Another task may have run at the same time: check what both have written"
    )
    logger.error(text, subject, subject.lock, extra=extra)
    _send_event(services, "lock-lost", subject)


def lost(subject: Subject, held_s: float) -> None:
    extra = _tell(subject, "lost", holder_id=subject.task_id, held_s=held_s)
    text = (
        "%s lost its lease on lock %s before it released it: the lease expired without a renewal, or was "
        "released by force. Another owner may have held the lock at the same time"
    )
    logger.error(text, subject, subject.lock, extra=extra)


def recovered(subject: Subject, deaths: int, worker: str) -> None:
    extra = _tell(subject, "recovered")
    text = (
        "%s was recovered under lock %s, and runs again: the lease of its last run expired, since %s "
        "died or was cut off (%d so far)"
    )
    of = f"its worker {worker}" if worker else "its worker"
    logger.warning(text, subject, subject.lock, of, deaths, extra=extra)


def gave_up(services: Services, subject: Subject, deaths: int) -> None:
    extra = _tell(subject, "given_up", "given_up")
    text = (
        "%s is given up: %d times its worker died, or was cut off, while it ran under lock %s. It "
        "ends as FAILURE and its lock goes on: find out whether its body uses too much memory or crashes the "
        "process"
    )
    logger.error(text, subject, deaths, subject.lock, extra=extra)
    _send_event(services, "lock-task-gave-up", subject, deaths=deaths)


def forced(key: str, owner: Owner, worker: str, by: str, reason: str) -> None:
    extra = _tell(Subject(None, None, key), "forced", by=[owner])
    text = (
        "lock %s was released by force by %s%s: it was %s%s. A body that still runs goes on beside the next "
        "holder"
    )
    on_worker = f" on {worker}" if worker else ""
    logger.warning(text, key, by, because(reason), held([owner]), on_worker, extra=extra)


def released_by_operator(key: str, owner: Owner, by: str, reason: str) -> None:
    extra = _fields(Subject(None, task_id(owner.id), key), by=[owner])
    logger.warning(
        "lock %s was released by %s%s: it was %s", key, by, because(reason), held([owner]), extra=extra
    )


def deleted_by_operator(key: str, by: str, reason: str) -> None:
    text = "the damaged data of lock %s were deleted by %s%s, with the tasks that waited in its line"
    logger.warning(text, key, by, because(reason), extra=_fields(Subject(None, None, key)))


def runs_without_lease(services: Services, subject: Subject, error: Exception) -> None:
    extra = _tell(subject, "unprotected", "store_down")
    text = (
        "%s runs without lock %s, as on_store_error='allow' says, and another task may run at the "
        "same time: %s"
    )
    logger.error(text, subject, subject.lock, error, extra=extra)
    _send_event(services, "lock-without-lease", subject, reason="store_down", error=str(error))


def continues_without_key(subject: Subject, error: Exception) -> None:
    extra = _tell(subject, "unprotected", "store_down")
    text = "%s continues without unique key %s, and may be a duplicate: %s"
    logger.error(text, subject, subject.lock_key, error, extra=extra)


def continues_without_window(subject: Subject, error: Exception) -> None:
    text = "%s is sent at once, and not at the end of its window %s: %s"
    logger.error(text, subject, subject.lock_key, error, extra=_fields(subject, "store_down"))


def continues_without_place(subject: Subject, error: Exception) -> None:
    text = "%s is sent without its place in the line of lock %s, and may start out of order: %s"
    logger.error(text, subject, subject.lock, error, extra=_fields(subject, "store_down"))


def has_no_window(subject: Subject) -> None:
    text = (
        "%s is sent now, and does not wait in window %s: it has a countdown or an eta, another broker, or a "
        "queue to which a worker cannot publish it again"
    )
    logger.info(text, subject, subject.lock_key, extra=_fields(subject))


def lock_not_left(subject: Subject, error: Exception) -> None:
    text = "%s could not leave lock %s to its retry, which waits for its turn: %s"
    logger.error(text, subject, subject.lock, error, extra=_fields(subject, "store_down"))


def runs_without_option(subject: Subject) -> None:
    text = (
        "%s left the line of lock %s and runs without it: in this worker's code its task does not "
        "have the option that it was published with. Run the same release of the code on all workers"
    )
    logger.warning(text, subject, subject.lock, extra=_fields(subject))


def stale(subject: Subject) -> None:
    text = "%s dropped: another copy of its message runs, or has finished, under lock %s"
    logger.info(text, subject, subject.lock, extra=_fields(subject))


def store_wait(subject: Subject, error: Exception) -> None:
    text = "%s waits for its lock's store: %s"
    logger.warning(text, subject, error, extra=_fields(subject, "store_down"))


def message_requeued(services: Services, subject: Subject, error: Exception) -> None:
    text = "the message of task %s[%s] goes back to the broker: its lock's store does not answer: %s"
    extra = _fields(subject, "store_down")
    logger.error(text, subject.task_name, subject.task_id, error, extra=extra)
    _send_event(services, "lock-message-requeued", subject, reason="store_down", error=str(error))


def stepped_aside(subject: Subject) -> None:
    text = (
        "Task [%s] steps aside in the line of lock %s: no worker accepted its offers. Start a worker that "
        "consumes its queue and has its task registered"
    )
    logger.warning(text, subject.task_id, subject.lock, extra=_fields(subject, "aside"))


def queue_deleted(subject: Subject, queue: str) -> None:
    text = "Task [%s] leaves the line of lock %s and does not run: its queue %s was deleted with its worker"
    logger.warning(text, subject.task_id, subject.lock, queue, extra=_fields(subject))


def message_gone(subject: Subject) -> None:
    text = "Task [%s] is lost: another program deleted its message from the line of lock %s. Publish it again"
    run_in_hub(logger.error, text, subject.task_id, subject.lock, extra=_fields(subject))


def _tell(
    subject: Subject, kind: Kind, reason: Reason | None = None, by: Sequence[Owner] = (), **known: object
) -> dict[str, object]:
    """Send an outcome, if it has receivers; return the fields of its log line."""
    facts = _facts(subject, reason, by, known)
    if lock_outcome.receivers:
        subject.tell(LockOutcome(kind, **facts))
    return _printable({"outcome": kind, **facts})


def _fields(subject: Subject, reason: Reason | None = None, by: Sequence[Owner] = ()) -> dict[str, object]:
    return _printable({"outcome": None, **_facts(subject, reason, by, {})})


def _facts(
    subject: Subject, reason: Reason | None, by: Sequence[Owner], known: dict[str, object]
) -> dict[str, Any]:
    owner = by[0] if by else None
    if owner and owner.is_closed and reason in ("held", "in_line"):
        reason = cast("Reason", owner.phase)
    facts: dict[str, object] = {
        "task_name": subject.task_name,
        "task_id": subject.task_id,
        "lock_key": subject.lock_key,
        "reason": reason,
        "holder_id": (task_id(owner.id) or None) if owner else None,
        "place": None,
        "held_s": owner.age / SECOND if owner and owner.phase != "offered" and not owner.is_closed else None,
        "wait_s": None,
    }
    return {**facts, **known}


def _printable(fields: dict[str, object]) -> dict[str, object]:
    return {name: printable(it) if isinstance(it, str) else it for name, it in fields.items()}


def _send_event(services: Services, kind: str, subject: Subject, **fields: object) -> None:
    events.send(services, kind, uuid=subject.task_id, name=subject.task_name, lock=subject.lock_key, **fields)
