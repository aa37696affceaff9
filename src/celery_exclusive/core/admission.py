"""The plan of a delivery: whether its body may begin, and what becomes of it otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from celery_exclusive.core.claim import (
    FINISHED,
    STARTED,
    Claim,
    UniqueClaim,
    first_task_id,
    is_other_copy,
    publish_claim_id,
    task_id,
)
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.operations import (
    Acquire,
    Answer,
    Applied,
    Full,
    Granted,
    Held,
    Owner,
    Parked,
    Remove,
)
from celery_exclusive.core.plan import Ask, Plan


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task's option says of conflicts."""

    on_conflict: str = "wait"
    on_full: str = "raise"
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a delivery.

    run: its body may begin. skip, fail: it ends without its body, as SUCCESS or with LockHeld. wait: the
    store has its message. reschedule: it is delivered again later. drop: another copy of its message has run.

    `key` is the one that decided, `by` are its owners, `existing_id` the task of the first, `reason` is
    why. `fence` is that of the lock if it was granted, `unique_fence` that of the unique key, `position` that
    of a waiting task in line, `waiting` how many wait in a full line. `may_hold_unique` says that the end has
    to release the unique key.
    """

    kind: Literal["run", "skip", "fail", "wait", "reschedule", "drop"]
    key: str = ""
    by: tuple[Owner, ...] = ()
    existing_id: str = ""
    reason: Literal["held", "full", "duplicate"] = "held"
    fence: int = 0
    unique_fence: int = 0
    position: int = 0
    waiting: int = 0
    may_hold_unique: bool = False

    @property
    def has_lock(self) -> bool:
        return self.fence > 0

    def is_against(self, task: str) -> bool:
        """Whether this task is the one that has the key."""
        return task in (self.existing_id, *(task_id(owner.id) for owner in self.by))

    def as_duplicate(self, key: str, by: tuple[Owner, ...]) -> Outcome:
        """Return the outcome of a run whose unique key these owners hold. It keeps its lock."""
        return replace(self, kind="skip", key=key, by=by, existing_id=first_task_id(by), reason="duplicate")


ON_CONFLICT: dict[str, Literal["skip", "fail", "reschedule"]] = {
    "wait": "reschedule",  # if it cannot be parked
    "skip": "skip",
    "raise": "fail",
    "reschedule": "reschedule",
}


def admit(delivery: Delivery, policy: Policy) -> Plan[Outcome]:
    """Decide whether the body of a delivery may begin: first by its lock, and only then by its unique key."""
    unique = delivery.unique
    if delivery.duplicate_of:
        key, existing_id = delivery.duplicate_of
        return Outcome("skip", key, existing_id=existing_id, reason="duplicate")
    may_hold = unique is not None and not unique.ends_by_clock
    if unique and not (unique.is_acquired or delivery.has_asked_before):
        held = yield from _acquire_as_publisher(delivery, unique)
        if held and not _is_kin(delivery, held.by[0]):
            return Outcome("run").as_duplicate(unique.claim.key, held.by)
        if held:  # its kin ends before it begins
            may_hold = False
    outcome = Outcome("run")
    if delivery.exclusive:
        outcome = yield from _acquire_lock(delivery, delivery.exclusive, policy)
    if unique and outcome.kind == "run":
        outcome = yield from _begin(delivery, unique, outcome)
    elif unique:
        outcome = replace(outcome, may_hold_unique=may_hold)
        if delivery.exclusive and outcome.kind in ("wait", "reschedule"):
            yield from _keep_unique_key(delivery, unique, delivery.exclusive)
        elif outcome.kind == "drop" and delivery.offered == unique.claim.key:
            yield Ask(unique.claim.key, Remove(delivery.id))  # no other delivery accepts this offer
    return outcome


def _acquire_lock(delivery: Delivery, claim: Claim, policy: Policy) -> Plan[Outcome]:
    """Acquire the lock, or wait in its line.

    The message is sent to the store by a second request, when the lock is known to be held: most are free.
    """
    acquire = delivery.acquire(claim, at_once=True)
    answer = yield from _ask(delivery, claim.key, acquire)
    has_to_wait = isinstance(answer, Held) and _has_to_wait(delivery, policy, answer.by)
    waits = has_to_wait or policy.on_conflict == "wait"
    if isinstance(answer, Held) and waits and delivery.can_be_parked:
        is_new = not (has_to_wait or delivery.was_admitted)
        acquire = replace(acquire, at_once=False, max_waiting=policy.max_waiting if is_new else None)
        answer = yield Ask(claim.key, acquire, park=True)
    if isinstance(answer, Granted):
        return Outcome("run", claim.key, fence=answer.fence)
    if isinstance(answer, Parked):
        return Outcome("wait", claim.key, answer.by, position=answer.position)
    if isinstance(answer, Full):
        kind = ON_CONFLICT[policy.on_full]
        return Outcome(kind, claim.key, answer.by, first_task_id(answer.by), "full", waiting=answer.waiting)
    if isinstance(answer, Held):
        kind = ON_CONFLICT["wait" if has_to_wait else policy.on_conflict]
        return Outcome(kind, claim.key, answer.by, first_task_id(answer.by))
    return Outcome("drop", claim.key)


def _ask(delivery: Delivery, key: str, acquire: Acquire) -> Plan[Answer]:
    """Ask for a key, and send the message only if that replaces one that the store keeps.

    The store may keep it as an earlier delivery has parked it: not redelivered yet, as its body has to know.
    """
    answer = yield Ask(key, acquire)
    if isinstance(answer, Parked) and delivery.redelivered:
        answer = yield Ask(key, replace(acquire, at_once=False), park=True)
    return answer


def _has_to_wait(delivery: Delivery, policy: Policy, by: tuple[Owner, ...]) -> bool:
    """Whether it waits for these owners, whatever its option says: it was admitted before, or is kin."""
    goes_on = delivery.was_admitted and policy.on_conflict in ("skip", "raise")
    return goes_on or any(_is_kin_but_no_copy(delivery, owner) for owner in by)


def _acquire_as_publisher(delivery: Delivery, unique: UniqueClaim) -> Plan[Held | None]:
    """Do what a publisher without this library has not done. Held: the message is a duplicate."""
    key, queued = unique.claim.key, unique.queued
    own = queued.acquire_alone(unique.queued_ttl, "period" if unique.ends_by_clock else "queued")
    answer = yield Ask(key, own)
    if isinstance(answer, Held) and not answer.names_no_owner and _is_own_publish(delivery, answer.by[0]):
        answer = yield Ask(key, replace(own, inherits=(answer.by[0].id, "")))
    return answer if isinstance(answer, Held) and not answer.names_no_owner else None


def _begin(delivery: Delivery, unique: UniqueClaim, run: Outcome) -> Plan[Outcome]:
    """Acquire the unique key for the run. What has to wait for that holds no lock meanwhile."""
    if unique.until == STARTED:
        yield Ask(unique.claim.key, unique.queued.release("open"))
    if unique.until != FINISHED:
        return run
    claim = unique.claim
    answer = yield from _acquire_unique_key(delivery, claim)
    if answer is None:  # it needs no key
        return run
    if isinstance(answer, Granted):
        yield from _supersede_former_run(delivery, claim)
        return replace(run, may_hold_unique=True, unique_fence=answer.fence)
    if isinstance(answer, Held) and not _has_to_run(delivery, answer.by[0]):
        return run.as_duplicate(claim.key, answer.by)
    if delivery.exclusive:
        yield Ask(delivery.exclusive.key, Remove(delivery.exclusive.id, ending="open"))
        yield Ask(delivery.exclusive.key, delivery.exclusive.release("open"))
    if isinstance(answer, Parked):
        return Outcome("wait", claim.key, answer.by, position=answer.position)
    by = answer.by if isinstance(answer, Held) else None  # the store keeps no line
    return Outcome("drop", claim.key) if by is None else Outcome("reschedule", claim.key, by)


def _acquire_unique_key(delivery: Delivery, claim: Claim) -> Plan[Answer | None]:
    """Acquire the unique key, take it over, or wait in its line. None: the body runs without it."""
    acquire = delivery.acquire(claim, at_once=True)
    answer = yield from _ask(delivery, claim.key, acquire)
    if isinstance(answer, Held) and _may_take_over(delivery, answer.by[0]):
        answer = yield Ask(claim.key, replace(acquire, takes_over=(answer.by[0].id, answer.by[0].phase)))
    if not isinstance(answer, Held):
        return answer
    if _runs_without(delivery, answer.by[0]):
        return None
    if delivery.can_be_parked and _has_to_run(delivery, answer.by[0]):
        answer = yield Ask(claim.key, replace(acquire, at_once=False), park=True)
    return answer


def _supersede_former_run(delivery: Delivery, claim: Claim) -> Plan[None]:
    """The run that handed its key over has no lease to hold back copies of its message: end them all."""
    if delivery.follows:
        yield Ask(claim.key, Remove(delivery.follows, ending="superseded"))


def _keep_unique_key(delivery: Delivery, unique: UniqueClaim, lock: Claim) -> Plan[None]:
    """Keep the unique key while its message waits in the line of a lock."""
    if unique.ends_by_clock:
        return
    for claim in unique.claims:
        requeue = replace(unique, claim=claim).requeue()
        if (yield Ask(claim.key, requeue, may_fail=True)) == Applied(True):
            return
    if delivery.has_asked_before:
        yield from _release_dead_run(unique, lock)


def _release_dead_run(unique: UniqueClaim, lock: Claim) -> Plan[None]:
    """Release the unique lease of an earlier delivery that is dead, for its message, as its worker would.

    A run acquires its lock first, and the looks come in the other order: a run that has the unique key at the
    first look, and no lock at the second, is dead or just ending. One that has both may live; if it does not,
    both leases expire together.
    """
    key = unique.claim.key
    runs = yield Ask(key, None, may_fail=True)
    locked = yield Ask(lock.key, None, may_fail=True)
    if not (isinstance(runs, Held) and isinstance(locked, Held)):
        return
    if lock.id in [owner.id for owner in locked.by]:
        return
    for run in runs.by:
        if run.id == unique.claim.id:
            dead = replace(unique, claim=replace(unique.claim, token=run.token))
            yield Ask(key, dead.requeue(), may_fail=True)


def _has_to_run(delivery: Delivery, owner: Owner) -> bool:
    """Whether this delivery is no duplicate of the owner, and waits until the unique key is free."""
    return delivery.has_asked_before or _is_kin(delivery, owner)


def _is_kin(delivery: Delivery, owner: Owner) -> bool:
    """Whether this is the same message, an earlier run of its task, or the parent that is just ending."""
    is_same = publish_claim_id(owner.id) == publish_claim_id(delivery.id)
    return is_same or task_id(owner.id) in delivery.kin


def _is_kin_but_no_copy(delivery: Delivery, owner: Owner) -> bool:
    """Whether it is kin, and not another queue's copy of the same publish."""
    return _is_kin(delivery, owner) and not is_other_copy(owner.id, delivery.id)


def _is_own_publish(delivery: Delivery, owner: Owner) -> bool:
    """Whether its publisher has acquired the key, and said so in a header that is not valid here."""
    return owner.phase == "queued" and task_id(owner.id) == task_id(delivery.id)


def _may_take_over(delivery: Delivery, owner: Owner) -> bool:
    """Whether the owner is only queued, or comes from this very task.

    A queued one ends as a duplicate when it is delivered. If each left the key to the next one, in a queue
    that is longer than `queued_ttl`, none would run.
    """
    if owner.phase == "queued":
        return not delivery.is_fanout or publish_claim_id(delivery.id) == owner.id
    return owner.phase == "again" and _is_kin(delivery, owner)


def _runs_without(delivery: Delivery, owner: Owner) -> bool:
    """Whether the key is that of the publish, and another queue's copy has begun first.

    Where all queues get a copy, that one may have ended already, and another publish has the key.
    """
    return is_other_copy(delivery.id, owner.id) or (delivery.is_fanout and delivery.id != owner.id)
