"""The plan of a run without a message: the caller itself waits for the lock, and no message is queued."""

from __future__ import annotations

from dataclasses import replace

from celery_exclusive.core.admission import IN_LINE, ON_CONFLICT, Admission
from celery_exclusive.core.claim import FINISHED, STARTED, Claim, UniqueClaim, first_task_id
from celery_exclusive.core.operations import Granted, Held
from celery_exclusive.core.plan import Ask, Plan


def admit_directly(lock: Claim | None, unique: UniqueClaim | None, on_conflict: str) -> Plan[Admission]:
    """Decide whether a body may begin. The lock is acquired before the unique key.

    A key that the code around the run holds already is not asked for. A request with `park` asks the caller
    to wait until the lock is free.
    """
    outcome = Admission("run")
    if lock:
        key = lock.key
        answer = yield Ask(key, lock.acquire(), park=on_conflict in (*IN_LINE, "reschedule"))
        if isinstance(answer, Held):
            return Admission(
                ON_CONFLICT[on_conflict], key, answer.by, first_task_id(answer.by), others=answer.others
            )
        assert isinstance(answer, Granted)  # noqa: S101 - there is no entry, and no line to be full
        outcome = Admission("run", key, fence=answer.fence)
    if unique:
        outcome = yield from _acquire_unique_key(unique, outcome)
    return outcome


def _acquire_unique_key(unique: UniqueClaim, run: Admission) -> Plan[Admission]:
    claim = unique.claim
    is_period = unique.ends_by_clock
    answer = yield Ask(
        claim.key, claim.acquire_alone(unique.queued_ttl, "period") if is_period else claim.acquire()
    )
    if isinstance(answer, Held):
        return run.as_duplicate(claim.key, answer.by)
    if unique.until == STARTED:
        yield Ask(claim.key, claim.release())
    return replace(run, may_hold_unique=unique.until == FINISHED)
