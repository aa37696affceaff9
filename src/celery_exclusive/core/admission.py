"""The plans of a delivery, and of a run without a message: whether its body may begin, or what ends it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from celery_exclusive.core.claim import (
    FINISHED,
    LAST_CHANCE,
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
    Over,
    Owner,
    Parked,
    Remove,
    Stale,
)
from celery_exclusive.core.plan import Ask, Plan
from celery_exclusive.core.publishing import stand_behind


@dataclass(frozen=True, slots=True)
class Policy:
    """The values of an option that decide a conflict. `gives_up_in`: how long a new task waits in line."""

    on_conflict: str = "wait"
    on_full: str = "raise"
    max_waiting: int | None = None
    gives_up_in: int | None = None
    on_give_up: str = "raise"
    on_duplicate: str = "skip"


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about a delivery.

    run: the body may begin. skip, fail: the delivery ends without its body, as SUCCESS or with a `Conflict`.
    wait: the store has the message. join: it holds its unique key, and ends as the task `existing_id` has,
    which held the key before; "": that was lost. reschedule: the message is delivered again later. drop:
    another copy of the message runs, or has run.

    `key` decided, and `by` and `others` are its owners, as in `Parked`. `existing_id`: the first owner's
    task, or the newer one by which this one was replaced or superseded. `waiting`: the tasks in a full line.
    `may_hold_unique`: the end of the run has to release the unique key.
    """

    kind: Literal["run", "skip", "fail", "wait", "join", "reschedule", "drop"]
    key: str = ""
    by: tuple[Owner, ...] = ()
    existing_id: str = ""
    reason: Literal["held", "full", "duplicate", "replaced", "superseded", "given_up"] = "held"
    fence: int = 0
    unique_fence: int = 0
    position: int = 0
    waiting: int = 0
    may_hold_unique: bool = False
    others: int = 0

    @property
    def has_lock(self) -> bool:
        return self.fence > 0

    @property
    def ends_wait(self) -> bool:
        """Whether the task ends since its wait is over: a later copy of its message must not end it again."""
        return self.reason in ("replaced", "given_up")

    def is_against(self, task: str) -> bool:
        return task in (self.existing_id, *(task_id(owner.id) for owner in self.by))

    def given_up(self, on_give_up: str) -> Admission:
        return replace(self, kind=ON_CONFLICT[on_give_up], reason="given_up")

    def as_duplicate(self, key: str, by: tuple[Owner, ...], on_duplicate: str = "skip") -> Admission:
        """Return the outcome of a run whose unique key these owners hold. The run keeps its lock."""
        kind, existing_id = ON_CONFLICT[on_duplicate], first_task_id(by)
        return replace(self, kind=kind, key=key, by=by, existing_id=existing_id, reason="duplicate")


_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
REPLACING = ("latest", "supersede")
"""The values of `on_conflict` with which a newer task takes the place of the waiting one."""
IN_LINE = ("wait", *REPLACING)
"""The values of `on_conflict` with which a task waits in line."""
ON_CONFLICT: dict[str, Literal["skip", "fail", "reschedule"]] = {
    **dict.fromkeys(IN_LINE, "reschedule"),  # if it cannot be parked
    "skip": "skip",
    "raise": "fail",
    "reschedule": "reschedule",
}


def admit(delivery: Delivery, policy: Policy) -> Plan[Admission]:
    """Decide whether the body of a delivery may begin.

    A last chance comes before all other keys: the store counts a death of no task that only waits for it.
    """
    if delivery.last_chance is None:
        outcome = yield from _acquire_keys(delivery, policy)
        if delivery.offered == LAST_CHANCE:  # its last chance is over, or by a new setting it needs none
            yield Ask(LAST_CHANCE, Remove(delivery.id, ending="open"))
        return outcome
    answer = yield from _acquire_last_chance(delivery, delivery.last_chance)
    if isinstance(answer, Parked) and answer.position:
        yield from _let_others_pass(delivery)
    lock = delivery.exclusive
    if isinstance(answer, Stale) and lock and delivery.offered == lock.key:  # it has ended while it waited
        yield Ask(lock.key, Remove(delivery.id))
    if not isinstance(answer, Granted):
        return _outcome(answer, LAST_CHANCE, policy, has_to_wait=True)
    outcome = yield from _acquire_keys(delivery, policy)
    yield Ask(LAST_CHANCE, Remove(delivery.id, ending="open"))  # its other key has the message now
    if outcome.kind != "run":
        yield Ask(LAST_CHANCE, delivery.last_chance.release("open"))
    return outcome


def admit_directly(lock: Claim | None, unique: UniqueClaim | None, on_conflict: str) -> Plan[Admission]:
    """Decide whether the body of a run without a message may begin, of which nothing is queued.

    A key that the code around the run holds already is not asked for. With `park` the caller itself waits.
    """
    outcome = Admission("run")
    if lock:
        answer = yield Ask(lock.key, lock.acquire(), park=on_conflict in (*IN_LINE, "reschedule"))
        outcome = _outcome(answer, lock.key, Policy(on_conflict), has_to_wait=False)
    if unique is None or outcome.kind != "run":
        return outcome
    claim, by_clock = unique.claim, unique.ends_by_clock
    acquire = claim.acquire_alone(unique.queued_ttl, "period") if by_clock else claim.acquire()
    answer = yield Ask(claim.key, acquire)
    if isinstance(answer, Held):
        return outcome.as_duplicate(claim.key, answer.by)
    if unique.until == STARTED:
        yield Ask(claim.key, claim.release())
    return replace(outcome, may_hold_unique=unique.until == FINISHED)


def _acquire_last_chance(delivery: Delivery, claim: Claim) -> Plan[Answer]:
    acquire = delivery.acquire(claim)
    answer = yield from _ask(delivery, claim.key, acquire)
    if isinstance(answer, Held) and delivery.can_be_parked:
        answer = yield Ask(claim.key, delivery.park(acquire), park=True)
    return answer


def _let_others_pass(delivery: Delivery) -> Plan[None]:
    """Let others run while the delivery waits for its last chance, but no duplicates of it.

    It keeps its place in the line of its lock: at the end it would give up its last chance again and again.
    """
    if delivery.exclusive:
        yield Ask(delivery.exclusive.key, Remove(delivery.id, ending="aside"))
    unique = delivery.unique
    if unique and unique.until == FINISHED:  # the lease of its dead run has ended
        yield Ask(unique.claim.key, Remove(delivery.id, ending="open"))
        yield Ask(unique.claim.key, unique.claim.acquire_alone(unique.claim.ttl, "running"), may_fail=True)
        yield from _keep_unique_key(delivery, unique, delivery.exclusive)


def _acquire_keys(delivery: Delivery, policy: Policy) -> Plan[Admission]:
    unique = delivery.unique
    if unique and delivery.ends_window:
        return (yield from _leave_window(delivery, unique.claim, policy))
    if delivery.duplicate_of:
        return (yield from _end_as_duplicate(delivery, *delivery.duplicate_of, policy))
    may_hold = unique is not None and not unique.ends_by_clock
    if unique and not (unique.is_acquired or delivery.has_asked_before):
        held = yield from _acquire_as_publisher(delivery, unique)
        if held and not _is_kin(delivery, held.by[0]):
            return (yield from _end_as_duplicate(delivery, unique.claim.key, first_task_id(held.by), policy))
        if held:  # the kin that holds the key ends before this body begins
            may_hold = False
    outcome = Admission("run")
    if delivery.exclusive:
        outcome = yield from _acquire_lock(delivery, delivery.exclusive, policy)
    if unique is None:
        return outcome
    if outcome.kind == "run":
        return (yield from _begin(delivery, unique, outcome, policy))
    return (yield from _not_begun(delivery, unique, replace(outcome, may_hold_unique=may_hold)))


def joinable(existing_id: str, called_by: str | None) -> bool:
    """Whether a duplicate may wait for the end of this task: not for its own caller, which may wait for it.

    The result under an id that a caller has chosen may be an earlier call's.
    """
    return existing_id != called_by and _UUID.fullmatch(existing_id) is not None


def _may_join(delivery: Delivery, existing_id: str) -> bool:
    return delivery.joins and joinable(existing_id, delivery.called_by)


def _end_as_duplicate(delivery: Delivery, key: str, existing_id: str, policy: Policy) -> Plan[Admission]:
    """End the delivery, or wait in the line of its unique key, in no slot, for the task that holds this."""
    if not (delivery.unique and _may_join(delivery, existing_id)):
        return Admission(ON_CONFLICT[policy.on_duplicate], key, existing_id=existing_id, reason="duplicate")
    claim = delivery.unique.claim
    acquire = replace(delivery.acquire(claim, at_once=True), joins=True)
    answer = yield Ask(claim.key, acquire, joins=existing_id)
    if isinstance(answer, Held) or (isinstance(answer, Parked) and delivery.redelivered):
        answer = yield Ask(claim.key, delivery.park(acquire), park=True, joins=existing_id)
    if not isinstance(answer, Granted):
        return _outcome(answer, claim.key, policy, has_to_wait=True)
    return _join(claim.key, answer)


def _join(key: str, answer: Granted) -> Admission:
    after = task_id(answer.after)
    return Admission("join", key, (), after, unique_fence=answer.fence, may_hold_unique=True)


def _not_begun(delivery: Delivery, unique: UniqueClaim, outcome: Admission) -> Plan[Admission]:
    """Leave the unique key to a message that waits, and its line to a copy that is dropped."""
    if delivery.exclusive and outcome.kind in ("wait", "reschedule"):
        yield from _keep_unique_key(delivery, unique, delivery.exclusive)
    elif outcome.kind == "drop" and delivery.offered == unique.claim.key:
        yield Ask(unique.claim.key, Remove(delivery.id))  # no other delivery accepts this offer
    return outcome


def _leave_window(delivery: Delivery, claim: Claim, policy: Policy) -> Plan[Admission]:
    """Let the copy of an offer that comes first acquire its lock; the next window may be offered then.

    The key is held only for this decision. A redelivered message whose earlier delivery has made it begins
    again, also if another window is open by now.
    """
    answer = yield from _ask(delivery, claim.key, replace(delivery.acquire(claim), acks_late=False))
    if isinstance(answer, (Parked, Stale)):  # it is parked behind a delivery of the next window
        return _outcome(answer, claim.key, policy, has_to_wait=False)
    if isinstance(answer, Granted):
        yield Ask(claim.key, claim.release("open"), may_fail=True)
    # Its lock was not offered. It has not seen this message yet, unless an earlier delivery has asked for it.
    is_new = delivery.promoted and not delivery.was_admitted
    promoted = None if is_new else delivery.promoted
    return (yield from _acquire_keys(replace(delivery, promoted=promoted, offered=None), policy))


def _acquire_lock(delivery: Delivery, claim: Claim, policy: Policy) -> Plan[Admission]:
    """Acquire the lock, or wait in its line. Most locks are free: only a second request has the message."""
    if delivery.superseded_by:
        return Admission("skip", claim.key, existing_id=delivery.superseded_by, reason="superseded")
    acquire = delivery.acquire(claim, at_once=True)
    queued_id = publish_claim_id(delivery.id) if delivery.keeps_lock else ""
    if queued_id not in ("", delivery.id):
        acquire = replace(acquire, takes_over=(queued_id, "again"))
    answer = yield from _ask(delivery, claim.key, acquire)
    if queued_id and isinstance(answer, Held) and _is_held_for(queued_id, answer.by):
        return Admission("reschedule", claim.key, answer.by, first_task_id(answer.by), others=answer.others)
    has_to_wait = isinstance(answer, Held) and _has_to_wait(delivery, policy, answer.by)
    waits = has_to_wait or policy.on_conflict in IN_LINE
    if isinstance(answer, Held) and waits and delivery.can_be_parked:
        is_new = not (has_to_wait or delivery.was_admitted)
        acquire = replace(delivery.park(acquire), max_waiting=policy.max_waiting if is_new else None)
        if not delivery.may_have_begun:
            replaces = policy.on_conflict in REPLACING
            acquire = replace(acquire, gives_up_in=policy.gives_up_in, replaces=replaces)
        answer = yield Ask(claim.key, acquire, park=True)
    return _outcome(answer, claim.key, policy, has_to_wait=has_to_wait)


def _outcome(answer: Answer, key: str, policy: Policy, *, has_to_wait: bool) -> Admission:
    if isinstance(answer, Granted):
        return Admission("run", key, fence=answer.fence)
    if isinstance(answer, Parked):
        return Admission("wait", key, answer.by, position=answer.position, others=answer.others)
    if isinstance(answer, Over):
        newer = task_id(answer.newer)
        over = Admission("skip", key, answer.by, newer or first_task_id(answer.by), others=answer.others)
        return replace(over, reason="replaced") if newer else over.given_up(policy.on_give_up)
    if isinstance(answer, Full):
        kind = ON_CONFLICT[policy.on_full]
        held = Admission(kind, key, answer.by, first_task_id(answer.by), others=answer.others)
        return replace(held, reason="full", waiting=answer.waiting)
    if isinstance(answer, Held):
        kind = ON_CONFLICT["wait" if has_to_wait else policy.on_conflict]
        return Admission(kind, key, answer.by, first_task_id(answer.by), others=answer.others)
    return Admission("drop", key)


def _is_held_for(id: str, by: tuple[Owner, ...]) -> bool:
    """Whether the run before this retry has not ended, and holds the lock under the id of the retry."""
    return any(owner.id == id and owner.phase == "running" for owner in by)


def _ask(delivery: Delivery, key: str, acquire: Acquire) -> Plan[Answer]:
    """Ask without the message. If a redelivery is parked, replace the one in the store in a second request.

    That lacks the mark `redelivered`, which the body has to see.
    """
    answer = yield Ask(key, acquire)
    if isinstance(answer, Parked) and delivery.redelivered:
        answer = yield Ask(key, delivery.park(acquire), park=True)
    return answer


def _has_to_wait(delivery: Delivery, policy: Policy, by: tuple[Owner, ...]) -> bool:
    """Whether the delivery waits for these owners with any option: it was admitted before, or is kin.

    Another queue's copy of the same publish is no kin in this.
    """
    goes_on = delivery.was_admitted and policy.on_conflict in ("skip", "raise")
    kin = (owner for owner in by if _is_kin(delivery, owner))
    return goes_on or any(not is_other_copy(owner.id, delivery.id) for owner in kin)


def _acquire_as_publisher(delivery: Delivery, unique: UniqueClaim) -> Plan[Held | None]:
    """Acquire the unique key for a message whose publisher has not. Held: the message is a duplicate."""
    key, queued = unique.claim.key, unique.queued
    own = queued.acquire_alone(unique.queued_ttl, "period" if unique.ends_by_clock else "queued")
    answer = yield Ask(key, own)
    if isinstance(answer, Held) and not answer.names_no_owner:
        owner = answer.by[0]
        if owner.phase == "queued" and task_id(owner.id) == task_id(delivery.id):
            # The publisher of this message has acquired the key, in a header that is not valid here.
            answer = yield Ask(key, replace(own, inherits=(owner.id, "")))
        elif (yield from stand_behind(delivery.exclusive.key if delivery.exclusive else None, answer)):
            answer = yield Ask(key, replace(own, inherits=(owner.id, owner.token)))
    return answer if isinstance(answer, Held) and not answer.names_no_owner else None


def _begin(delivery: Delivery, unique: UniqueClaim, run: Admission, policy: Policy) -> Plan[Admission]:
    """Acquire the unique key for the run. A delivery that has to wait for it releases its lock meanwhile."""
    if unique.until == STARTED:
        yield Ask(unique.claim.key, unique.queued.release("open"))
    if unique.until != FINISHED:
        return run
    claim = unique.claim
    answer = yield from _acquire_unique_key(delivery, claim)
    if answer is None:  # the body runs without the key
        return run
    if isinstance(answer, Granted) and not answer.after:
        if delivery.follows:  # that run handed its key over: no lease holds the copies of its message back
            yield Ask(claim.key, Remove(delivery.follows, ending="superseded"))
        return replace(run, may_hold_unique=True, unique_fence=answer.fence)
    waits = not isinstance(answer, Held) or _has_to_run(delivery, answer.by[0])
    if isinstance(answer, Held) and not (waits or _may_join(delivery, first_task_id(answer.by))):
        return run.as_duplicate(claim.key, answer.by, policy.on_duplicate)
    if delivery.exclusive:
        yield Ask(delivery.exclusive.key, Remove(delivery.exclusive.id, ending="open"))
        yield Ask(delivery.exclusive.key, delivery.exclusive.release("open"))
    return (yield from _wait_for_unique_key(delivery, claim.key, answer, policy))


def _wait_for_unique_key(delivery: Delivery, key: str, answer: Answer, policy: Policy) -> Plan[Admission]:
    if isinstance(answer, Granted):  # an earlier delivery was parked to join the task that has ended
        return _join(key, answer)
    if isinstance(answer, Parked):
        return Admission("wait", key, answer.by, position=answer.position, others=answer.others)
    if not isinstance(answer, Held):
        return Admission("drop", key)
    if not _has_to_run(delivery, answer.by[0]):
        return (yield from _end_as_duplicate(delivery, key, first_task_id(answer.by), policy))
    return Admission("reschedule", key, answer.by)  # the store keeps no line


def _acquire_unique_key(delivery: Delivery, claim: Claim) -> Plan[Answer | None]:
    acquire = delivery.acquire(claim, at_once=True)
    answer = yield from _ask(delivery, claim.key, acquire)
    if isinstance(answer, Held) and _may_take_over(delivery, answer.by[0]):
        answer = yield Ask(claim.key, replace(acquire, takes_over=(answer.by[0].id, answer.by[0].phase)))
    if not isinstance(answer, Held):
        return answer
    if _runs_without(delivery, answer.by[0]):
        return None
    if delivery.can_be_parked and _has_to_run(delivery, answer.by[0]):
        answer = yield Ask(claim.key, delivery.park(acquire), park=True)
    return answer


def _keep_unique_key(delivery: Delivery, unique: UniqueClaim, lock: Claim | None) -> Plan[None]:
    """Keep the unique key while its message waits in the line of another key."""
    if unique.ends_by_clock:
        return
    for claim in unique.claims:
        requeue = replace(unique, claim=claim).requeue()
        if (yield Ask(claim.key, requeue, may_fail=True)) == Applied(True):
            return
    if lock and delivery.has_asked_before:
        yield from _release_dead_run(unique, lock)


def _release_dead_run(unique: UniqueClaim, lock: Claim) -> Plan[None]:
    """Requeue the unique lease of a dead earlier delivery of this message, as its worker would have done.

    A run acquires its lock first; this looks in the other order. One that has the unique key at the first
    look, and no lock at the second, is dead or just ending. One with both may live; if it is dead, both
    leases expire together.
    """
    key = unique.claim.key
    runs = yield Ask(key, None, may_fail=True)
    locked = yield Ask(lock.key, None, may_fail=True)
    if not (isinstance(runs, Held) and isinstance(locked, Held)):
        return
    if locked.others or lock.id in [owner.id for owner in locked.by]:
        return
    # A run that leaves its lock to its retry holds it under the id of the retry.
    living = [owner.token for owner in locked.by]
    for run in runs.by:
        if run.id == unique.claim.id and run.token not in living:
            dead = replace(unique, claim=replace(unique.claim, token=run.token))
            yield Ask(key, dead.requeue(), may_fail=True)


def _has_to_run(delivery: Delivery, owner: Owner) -> bool:
    """Whether this delivery waits until the unique key is free, as it is no duplicate of the owner."""
    return delivery.has_asked_before or _is_kin(delivery, owner)


def _is_kin(delivery: Delivery, owner: Owner) -> bool:
    """Whether the owner is the same message, an earlier run of its task, or the parent that just ends."""
    is_same = publish_claim_id(owner.id) == publish_claim_id(delivery.id)
    return is_same or task_id(owner.id) in delivery.kin


def _may_take_over(delivery: Delivery, owner: Owner) -> bool:
    """Whether the owner is a queued message, or a message of this very task.

    A queued message that loses its key ends as a duplicate when it is delivered. If each delivery left the
    key to the message behind it, no message would run in a queue that is longer than `queued_ttl`.
    """
    if owner.phase == "queued":
        return not delivery.is_fanout or publish_claim_id(delivery.id) == owner.id
    return owner.phase == "again" and _is_kin(delivery, owner)


def _runs_without(delivery: Delivery, owner: Owner) -> bool:
    """Whether the body runs without the key, since another queue's copy of the publish has begun first.

    Where all queues get a copy, the first copy may have ended already, and another publish may hold the key.
    """
    return is_other_copy(delivery.id, owner.id) or (delivery.is_fanout and delivery.id != owner.id)
