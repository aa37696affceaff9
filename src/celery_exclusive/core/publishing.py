"""The plan of a call: it acquires the unique key before a message is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_exclusive.core.claim import PERIOD, Claim, first_task_id, task_id
from celery_exclusive.core.operations import AcquireAlone, Held, Release, Stale
from celery_exclusive.core.plan import Ask, Plan
from celery_exclusive.core.records import Phase

Kind = Literal["call", "retry", "replacement", "rekeyed replacement"]
"""How a task comes to be published: by any code, by Celery's `retry`, or by its own run, for instance by
`replace`, with the unique key of that run or with another one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A message with a unique key that is about to be published.

    * `inherits`: the claim of the run whose lease it inherits, as a retry and a replacement do.
    * `is_awaited`: others wait for its result, as for that of a member of a canvas.
    * `has_to_be_sent`: as a duplicate, if another task holds the key: see the function of this name.
    * `is_parallel`: it is a member of a group or chord.
    * `parent`: the task whose end publishes it, or its own, if its own body does. `callers`: those whose
      bodies hold the key around it.
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


@dataclass(frozen=True, slots=True)
class Sending:
    """What becomes of a call: sent, sent as a duplicate, not sent, or an error; `existing_id` has its key.

    "sent": an earlier request has sent it, and it has finished, or has lost its key since.
    """

    kind: Literal["send", "sent", "duplicate", "skip", "error"] = "send"
    existing_id: str = ""
    may_hold: bool = False


def publish(call: Call) -> Plan[Sending]:
    """Acquire the unique key before a message is sent."""
    if call.kind == "retry" and call.until == PERIOD:  # the period goes on
        return Sending()
    acquire = call.claim.acquire_alone(call.queued_ttl, phase_of(call.until, call.kind), call.inherits)
    answer = yield Ask(call.claim.key, acquire)
    if not isinstance(answer, Held):
        return Sending("sent") if isinstance(answer, Stale) else Sending(may_hold=True)
    if _needs_no_key(call, answer):
        return Sending()
    existing_id = first_task_id(answer.by)
    if existing_id in call.callers and not call.is_parallel:
        return Sending("error", existing_id)
    is_own = existing_id == task_id(call.claim.id)
    if is_own and not call.is_awaited:  # a skip result would be stored as that of the task with the key
        return Sending("skip", existing_id)
    return Sending("duplicate" if call.has_to_be_sent else "skip", existing_id)


def has_to_be_sent(*, goes_on: bool, is_awaited: bool, has_given_id: bool, parent: str | None) -> bool:
    """Whether a message is sent whoever holds its key: work would be lost, or others wait in vain.

    `goes_on`: it is the retry or the replacement of a run. `has_given_id`: its caller has chosen its task id,
    and may wait for the result of that. The others are as of a `Call`.
    """
    return goes_on or is_awaited or has_given_id or parent is not None


def _needs_no_key(call: Call, held: Held) -> bool:
    """Whether it is sent without the key, which its worker acquires.

    Its run has begun with the key; its kin ends before it begins; or a request that was repeated has been
    refused, and nobody has the key any more.
    """
    if held.names_no_owner or call.kind in ("retry", "replacement"):
        return True
    existing_id = first_task_id(held.by)
    is_own = existing_id == task_id(call.claim.id)
    return existing_id == call.parent or (is_own and call.parent is not None)


def phase_of(until: str, kind: Kind) -> Phase:
    """The phase of its lease: a task that has run before runs again, even if it loses the key."""
    if until == PERIOD:
        return "period"
    return "queued" if kind == "call" else "again"


def unpublished(call: Call, running_ttl: int) -> AcquireAlone | Release:
    """Undo what `publish` has acquired: the message was not sent, and the run that it follows goes on."""
    if run := call.inherits:
        return run.acquire_alone(running_ttl, "running", inherits=call.claim)
    return call.claim.release("open")
