"""The plan of a call, which acquires the unique key before the message is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from celery_exclusive.core.claim import FINISHED, PERIOD, STARTED, Claim, first_task_id, task_id
from celery_exclusive.core.operations import AcquireAlone, Applied, Held, Release, Stale, StandBehind
from celery_exclusive.core.plan import Ask, Plan
from celery_exclusive.core.records import NOT_BEGUN, Phase

Kind = Literal["call", "retry", "replacement", "rekeyed replacement"]
"""The origin of a publish: any code, Celery's `retry`, or its own run, maybe with another unique key."""
PHASES: Final[Mapping[str, Phase]] = {FINISHED: "queued", STARTED: "queued", PERIOD: "period"}
"""The phase of the lease of a call, by the event that ends the lease."""


@dataclass(frozen=True, slots=True)
class Call:
    """A message with a unique key that is about to be published.

    * `inherits`: the run whose lease this retry or replacement inherits. `has_to_be_sent`: see there.
    * `is_awaited`: other tasks wait for its result. `is_parallel`: it is a member of a group or chord.
    * `parent`: the task whose end or body publishes it. `callers`: whose bodies hold the key around this
      call.
    * `lock`: the key in whose line the holder's message may be. `ends_waits`: messages may leave that line
      without their bodies. `patience`: the time after which a queued message may be lost.
    """

    claim: Claim
    until: str
    queued_ttl: int
    kind: Kind = "call"
    inherits: Claim | None = None
    is_awaited: bool = False
    has_to_be_sent: bool = False
    is_parallel: bool = False
    parent: str | None = None
    callers: tuple[str, ...] = ()
    lock: str | None = None
    ends_waits: bool = False
    patience: int = 0


@dataclass(frozen=True, slots=True)
class Sending:
    """The decision about a call: send it, send it as a duplicate, skip it, or raise an error.

    "sent": an earlier request has, and the task has finished or lost its key since. `may_hold`: a call that
    is not sent has to release the key.
    """

    kind: Literal["send", "sent", "duplicate", "skip", "error"] = "send"
    existing_id: str = ""
    may_hold: bool = False


def publish(call: Call) -> Plan[Sending]:
    """Acquire the unique key before a message is sent."""
    if call.kind == "retry" and call.until == PERIOD:  # the period of the first publish continues
        return Sending()
    phase = PHASES[call.until]
    if phase == "queued" and call.kind != "call":  # a task that has run before, even if it loses the key
        phase = "again"
    acquire = call.claim.acquire_alone(call.queued_ttl, phase, call.inherits)
    answer = yield Ask(call.claim.key, acquire)
    patience = 0 if call.ends_waits else call.patience
    if (
        isinstance(answer, Held)
        and call.kind == "call"
        and (yield from stand_behind(call.lock, answer, patience))
    ):
        owner = answer.by[0]
        answer = yield Ask(call.claim.key, replace(acquire, inherits=(owner.id, owner.token)))
    if not isinstance(answer, Held):
        return Sending("sent") if isinstance(answer, Stale) else Sending(may_hold=True)
    if _needs_no_key(call, answer):
        return Sending()
    existing_id = first_task_id(answer.by)
    if existing_id in call.callers and not call.is_parallel:
        return Sending("error", existing_id)
    is_own = existing_id == task_id(call.claim.id)
    if is_own and not call.is_awaited:  # a skip result would replace the result of the task with the key
        return Sending("skip", existing_id)
    return Sending("duplicate" if call.has_to_be_sent else "skip", existing_id)


def has_to_be_sent(*, goes_on: bool, is_awaited: bool, has_given_id: bool, parent: str | None) -> bool:
    """Whether a message is sent even if another task holds its key: else work is lost or a caller hangs.

    `goes_on`: a retry or replacement of a run. A caller that has chosen the id may wait for its result.
    """
    return goes_on or is_awaited or has_given_id or parent is not None


def stand_behind(lock: str | None, held: Held, patience: int = 0) -> Plan[bool]:
    """Stand behind the message that holds a unique key, if it has not begun. Return whether it never will."""
    owner = next(iter(held.by), None)
    if not lock or not owner or owner.phase not in NOT_BEGUN or owner.age < patience:
        return False
    return (yield Ask(lock, StandBehind(owner.id), may_fail=True)) == Applied(True)


def _needs_no_key(call: Call, held: Held) -> bool:
    """Whether the message is sent without the key, which its worker acquires.

    This is so for the retry or replacement of a run, for a kin of the holder, which ends before the message
    begins, and for a repeated request that was refused though the key has no owner any more.
    """
    if held.names_no_owner or call.kind in ("retry", "replacement"):
        return True
    existing_id = first_task_id(held.by)
    is_own = existing_id == task_id(call.claim.id)
    return existing_id == call.parent or (is_own and call.parent is not None)


def unpublished(call: Call, running_ttl: int) -> AcquireAlone | Release:
    """Return the operation that undoes `publish` for an unsent message: a former run gets its lease back."""
    if run := call.inherits:
        return run.acquire_alone(running_ttl, "running", inherits=call.claim)
    return call.claim.release("open")
