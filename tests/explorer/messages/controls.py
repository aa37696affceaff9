"""Faults that are planted in the plans, each with the words of the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from celery_exclusive.core import admission, endings, publishing, step
from celery_exclusive.core.admission import Admission
from celery_exclusive.core.call_steps import CallSteps
from celery_exclusive.core.claim import LAST_CHANCE, task_id
from celery_exclusive.core.delivery import Delivery
from celery_exclusive.core.endings import HandOver
from celery_exclusive.core.key_state import KeyState
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    GiveUp,
    Granted,
    Held,
    Operation,
    Parked,
    Release,
    Remove,
    Requeue,
)
from celery_exclusive.core.plan import Ask
from celery_exclusive.core.publishing import Sending
from celery_exclusive.core.records import Document, Line, Tombstone
from celery_exclusive.core.step import Transition
from tests.explorer.explore import Explored, search
from tests.explorer.messages import joining, plans, slots
from tests.explorer.messages.model import Model
from tests.explorer.messages.settings import KEEPS, SUPERSEDE, setting
from tests.explorer.messages.store import LOCK, MUCH_LATER, NOW
from tests.explorer.messages.world import LOST, Setting, Slot

_admit, _publish, _step = admission.admit, publishing.publish, step.step
_run_ended, _body_ended, _unpublished = endings.run_ended, endings.body_ended, publishing.unpublished
_acquire, _release = Delivery.acquire, step._Step.release
_acquire_alone, _give_up = CallSteps.acquire_alone, CallSteps.give_up
Change = tuple[Any, str, Any]
"""An object, one of its attributes, and what stands there instead."""


@dataclass(frozen=True, slots=True)
class Control:
    """A setting in which a fault is found by the promise that these words are of."""

    setting: Setting
    finds: str
    changes: tuple[Change, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, name, instead in self.changes:
                stack.enter_context(mock.patch.object(place, name, instead))
            yield

    def explore(self) -> Explored:
        with self.planted():
            return search(Model(self.setting))


def _driven(through: Callable[[Delivery, Ask], Any]) -> Change:
    """Admit with each ask put through a generator, which may ask otherwise, and returns the answer."""

    def admit(delivery: Delivery, policy: Any) -> Any:
        plan = _admit(delivery, policy)
        try:
            asked = next(plan)
            while True:
                asked = plan.send((yield from through(delivery, asked)))
        except StopIteration as end:
            return end.value

    return admission, "admit", admit


def _asking(change: Callable[[Delivery, Ask], Any]) -> Change:
    """Admit with other operations: the change returns an operation, or an answer without asking."""

    def through(delivery: Delivery, asked: Ask) -> Any:
        changed = change(delivery, asked)
        return (yield changed) if isinstance(changed, Ask) else changed

    return _driven(through)


def _outcome(change: Callable[[Delivery, Admission], Admission]) -> Change:
    def admit(delivery: Delivery, policy: Any) -> Any:
        return change(delivery, (yield from _admit(delivery, policy)))

    return admission, "admit", admit


def _facts(change: Callable[[Delivery], Delivery]) -> Change:
    return admission, "admit", lambda delivery, policy: _admit(change(delivery), policy)


def _stepping(change: Callable[[Document, Operation], Document]) -> Change:
    def changed(document: Document, line: Line, operation: Operation, now: int) -> Transition:
        return _step(change(document, operation), line, operation, now)

    return step, "step", changed


def _calling(**facts: Any) -> Change:
    return publishing, "publish", lambda call: _publish(replace(call, **facts))


def _calling_kin(call: Any) -> Any:
    return _publish(replace(call, parent=call.parent or task_id(call.claim.id)))


def _as_kin(delivery: Delivery) -> Delivery:
    return replace(delivery, published_by=delivery.published_by or task_id(delivery.id))


def _all_of_token(kind: type) -> Change:
    """The step takes every lease for one of the token that asks."""

    def change(document: Document, operation: Operation) -> Document:
        if not isinstance(operation, kind) or not isinstance(operation, (Acquire, AcquireAlone)):
            return document
        token = (
            operation.inherits[1]
            if isinstance(operation, AcquireAlone) and operation.inherits
            else operation.token
        )
        ours = [replace(lease, token=operation.token if lease.id == operation.id else token)
                for lease in document.holders]  # fmt: skip
        return replace(document, holders=tuple(ours))

    return _stepping(change)


def _without(kind: type, key: Callable[[Delivery], str | None], answer: Any) -> Change:
    """Leave one operation on one key of a delivery out."""
    return _asking(
        lambda delivery, asked: (
            answer if isinstance(asked.operation, kind) and asked.key == key(delivery) else asked
        )
    )


def _unique_key(delivery: Delivery) -> str | None:
    return delivery.unique.claim.key if delivery.unique else None


def _leaves_last_chance(asked: Ask) -> bool:
    return asked.key == LAST_CHANCE and isinstance(asked.operation, (Remove, Release))


def _publish_always(call: Any) -> Any:
    sending = yield from _publish(call)
    return Sending(may_hold=True) if sending.kind == "skip" else sending


def _keeps(call: Any, running_ttl: int) -> Any:
    undo = _unpublished(call, running_ttl)
    return Release("nobody", "", ending="open") if isinstance(undo, Release) else undo


def _released(call: Any, running_ttl: int) -> Any:
    return call.claim.release("open")


def _dropped(delivery: Delivery, outcome: Admission) -> Admission:
    return replace(outcome, kind="drop") if delivery.duplicate_of else outcome


def _keeps_key_of_superseded(_: Delivery, outcome: Admission) -> Admission:
    is_superseded = outcome.reason == "superseded"
    return replace(outcome, may_hold_unique=outcome.may_hold_unique and not is_superseded)


def _newcomer(delivery: Delivery) -> Delivery:
    return replace(delivery, was_admitted=False)


def _not_recovered(delivery: Delivery, claim: Any, **asked: Any) -> Acquire:
    return replace(_acquire(delivery, claim, **asked), recovers=False)


def _offered_for_all(delivery: Delivery, claim: Any, **asked: Any) -> Acquire:
    acquire = _acquire(delivery, claim, **asked)
    return replace(acquire, promoted=delivery.promoted, redelivered=delivery.redelivered)


def _owning(delivery: Delivery, asked: Ask) -> Any:
    op = asked.operation
    if not isinstance(op, Acquire) or op.takes_over is None:
        return (yield asked)
    answer = yield replace(asked, operation=AcquireAlone(op.id, op.token, op.ttl, (op.takes_over[0], "")))
    if isinstance(answer, Held) and answer.names_no_owner:
        answer = yield replace(asked, operation=replace(op, takes_over=None), park=True)
    return answer


def _not_alone(delivery: Delivery, *, will_be_redelivered: bool) -> Any:
    release = _body_ended(delivery, will_be_redelivered=will_be_redelivered)
    return release and replace(release, ending="open")


def _ended_for_good(delivery: Delivery, *, done: bool, will_be_redelivered: bool) -> Any:
    return _run_ended(delivery, done=True, will_be_redelivered=False)


def _keys_left(delivery: Delivery, *, done: bool, will_be_redelivered: bool) -> Any:
    """Leave the unique key of what comes again as the store has it."""
    delivery = replace(delivery, unique=None) if will_be_redelivered else delivery
    return _run_ended(delivery, done=done, will_be_redelivered=will_be_redelivered)


def _late_extension(delivery: Delivery, asked: Ask) -> Any:
    """Extend the unique lease of a run that seems to live, as long as the message may be queued."""
    answer = yield asked
    seen = answer.by if asked.operation is None and isinstance(answer, Held) else ()
    for owner in seen:
        if asked.key == _unique_key(delivery) and owner.id == delivery.id:
            yield Ask(asked.key, AcquireAlone(delivery.id, owner.token, MUCH_LATER - NOW))
    return answer


def _requeues_before_its_copy(state: Any, op: Requeue) -> Applied:
    """Keep the key of what is requeued, whatever waits behind it."""
    state.advance()
    lease = state.holders.get(op.id)
    if not lease or not lease.belongs_to(op.token):
        return Applied(False)
    state._renew_lease(replace(lease, phase="again"), op.ttl)
    return Applied(True)


def _offers_what_it_has_kept(state: Any, op: Release) -> Applied:
    """Take the message that a run has kept for the only copy, when its body ends."""
    if op.ending != "if_no_copy":
        return _release(state, op)
    state.advance()
    lease = state.holders.get(op.id)
    is_own = lease is not None and lease.belongs_to(op.token)
    if lease and (not is_own or lease.may_have_copies):
        return Applied(False)
    state.end_run(op.id)
    state.advance()
    return Applied(is_own)


def _inherits_at_once(hand_over: HandOver) -> AcquireAlone:
    return hand_over.claim.acquire_alone(hand_over.queued_ttl, "again", inherits=hand_over.lock)


def _releases_all(hand_over: HandOver, **_: object) -> Iterator[Release]:
    yield hand_over.claim.release("open")
    yield hand_over.lock.release()


def _may_fail(delivery: Delivery, asked: Ask) -> Ask:
    return replace(asked, may_fail=True) if isinstance(asked.operation, Remove) else asked


def _sends_unmarked(state: Any, op: AcquireAlone) -> Any:
    answer = _acquire_alone(state, op)
    state.new_tombstone = None if state.new_tombstone == Tombstone("sent") else state.new_tombstone
    return answer


def _refused_unmarked(state: Any, op: AcquireAlone) -> Any:
    answer = _acquire_alone(state, op)
    state.new_tombstone = None if isinstance(answer, Held) else state.new_tombstone
    return answer


def _takes_a_free_key(state: Any, op: AcquireAlone) -> Any:
    """Take a free key for the key of a call that was not sent yet."""
    state.mark = None
    return _acquire_alone(state, op)


def _given_up_unmarked(state: Any, op: GiveUp) -> Any:
    answer = _give_up(state, op)
    state.new_tombstone = None
    return answer


def _given_up_as_sent(state: Any, op: GiveUp) -> Any:
    state.mark = None
    return _give_up(state, op)


def _notes_no_end(state: Any, op: Release) -> Applied:
    """Release the key of a run for which others wait, and do not note that it has ended."""
    before = state.terms.done
    answer = _release(state, op)
    state.terms = replace(state.terms, done=before)
    return answer


def _never_forgets(document: Document, line: Line, operation: Operation, now: int) -> Transition:
    """Keep what has ended when a new body begins."""
    transition, done = _step(document, line, operation, now), document.terms.done
    after = transition.document
    kept = replace(after, terms=replace(after.terms, done=after.terms.done or done))
    answer = transition.answer
    answer = replace(answer, after=answer.after or done) if isinstance(answer, Granted) else answer
    return replace(transition, document=kept, answer=answer)


def _not_in_line(delivery: Delivery, asked: Ask) -> Any:
    """Take a duplicate that joins for one that is in line."""
    return Parked(1, ()) if asked.joins and asked.park else asked


def _ends_any_copy(model: Model, slot: Slot) -> bool:
    """Look for the result of the other, also if the store may know another copy."""
    message = slot.copy.message
    return model.plans.joins(slot) and not (slot.has_looked or slot.answers or not message.duplicate_of)


CONTROLS: Mapping[str, Control] = {
    "a publisher does not look at the answer": Control(
        setting("two calls"), "has not ended", ((publishing, "publish", _publish_always),)
    ),
    "a publisher keeps the key of what it could not send": Control(
        setting("a refusal", refusals=1), "not all ends well", ((publishing, "unpublished", _keeps),)
    ),
    "the key of a retry that is not sent is not given back to its run": Control(
        setting("a retry that fails", retries=1, refusals=1, inner=1),
        "runs without its lease",
        ((publishing, "unpublished", _released),),
    ),
    "a member of a canvas is skipped like a call": Control(
        setting("a member", calls="aB"), "others wait for its result", (_calling(has_to_be_sent=False),)
    ),
    "a duplicate is dropped": Control(
        setting("a member", calls="aB"), "not all ends well", (_outcome(_dropped),)
    ),
    "a retry does not take the lease over": Control(
        setting("a retry", retries=1), "does not get the key of a/1", (_calling(inherits=None),)
    ),
    "a retry is a call like any other": Control(
        setting("a retry elsewhere", calls="ab'", retries_elsewhere=1),
        "is a retry, and sent as a duplicate",
        (_calling(kind="rekeyed replacement"),),
    ),
    "a call from inside its own body is not told": Control(
        setting("an inner call", inner=1), "is not told", (_calling(callers=()),)
    ),
    "a key is taken over from what runs": Control(
        setting("a queue longer than queued_ttl", backlogs=1),
        "runs without its lease",
        ((admission, "_may_take_over", lambda delivery, owner: True), _all_of_token(AcquireAlone)),
    ),
    "a second delivery acquires the lease of the first": Control(
        setting("a second delivery", repeats=1), "runs without its lease", (_all_of_token(Acquire),)
    ),
    "two deliveries take over one after the other": Control(
        setting("a second delivery", crashes=1, repeats=1),
        "runs without its lease",
        (_all_of_token(AcquireAlone),),
    ),
    "what waits in line does not keep its unique key": Control(
        setting("a retry elsewhere", calls="ab'", exclusive=True, retries_elsewhere=1),
        "which waits in line",
        ((admission, "_keep_unique_key", lambda *_: iter(())),),
    ),
    "what waits behind its own run extends the lease of that": Control(
        setting("one call, a crash", calls="a", exclusive=True, crashes=1),
        "not all ends well any more (owed: a/1)",
        (_driven(_late_extension),),
    ),
    "the end of a body is not alone": Control(
        setting("a second delivery", repeats=1),
        "runs again, though it has finished",
        ((endings, "body_ended", _not_alone),),
    ),
    "a run that dies is not kept": Control(
        setting("recover: a crash", calls="a", exclusive=True, recovers=True, crashes=1),
        "not all ends well",
        ((Delivery, "acquire", _not_recovered),),
    ),
    "a unique run that dies is not kept": Control(
        setting("recover, one key: a crash", calls="a", recovers=True, crashes=1),
        "not all ends well",
        ((Delivery, "acquire", _not_recovered),),
    ),
    "what a run has kept is offered when its body has ended": Control(
        setting("recover, one key: one call", calls="a", recovers=True),
        "runs a second time by our own doing",
        ((step._Step, "release", _offers_what_it_has_kept),),
    ),
    "what a run has kept stays in line when a retry has its key": Control(
        setting(
            "recover, one key: a retry that is sent with an error, a crash",
            calls="a",
            recovers=True,
            retries=1,
            interruptions=1,
            crashes=1,
        ),
        "runs a second time by our own doing",
        ((step._Step, "is_at_broker", lambda *_: False),),
    ),
    "an earlier run of the same task is no kin": Control(
        setting("the next step", calls="a", exclusive=True, on_conflict="skip", steps=1),
        "no other task has x",
        ((admission, "_is_kin", lambda *_, **__: False),),
    ),
    "a call under the id of a task that is queued is its kin": Control(
        setting("one task id twice", calls="aa"), "has not ended", ((publishing, "publish", _calling_kin),)
    ),
    "a delivery under the id of a task that runs is its kin": Control(
        setting("one task id twice: the lock", calls="aa'", exclusive=True, on_conflict="skip"),
        "waits for x, and is to be skipped",
        (_facts(_as_kin),),
    ),
    "what a call sends leaves no mark": Control(
        setting("one call sends, and has to, alone", calls="A", sends=True, lost_replies=1),
        "is sent twice",
        ((CallSteps, "acquire_alone", _sends_unmarked),),
    ),
    "a request that is repeated takes a free key": Control(
        setting("one call sends, and has to, alone", calls="A", sends=True, lost_replies=1),
        "is sent twice",
        ((CallSteps, "acquire_alone", _takes_a_free_key),),
    ),
    "a call that was sent is given up": Control(
        setting("one call sends", calls="a", sends=True, lost_replies=1),
        "loses its key, and was sent",
        ((CallSteps, "give_up", _given_up_as_sent),),
    ),
    "a call that is refused when it is repeated leaves no mark": Control(
        setting("one call sends, and has to", calls="aB", sends=True, lost_replies=1),
        "is sent, and its publisher was told that it is not",
        ((CallSteps, "acquire_alone", _refused_unmarked),),
    ),
    "a call that was given up is sent when its request comes": Control(
        setting("one call sends", calls="a", sends=True, lost_replies=1),
        "is sent, and its publisher was told that it is not",
        ((CallSteps, "give_up", _given_up_unmarked),),
    ),
    "a retry gives up": Control(
        setting("give up: a retry", exclusive=True, gives_up=True, retries=1),
        "has begun before, and ends without its body",
        (_facts(lambda delivery: replace(delivery, may_have_begun=False)),),
    ),
    "what is over is dropped": Control(
        setting("give up", calls="ab'", exclusive=True, gives_up=True),
        "not all ends well",
        (_outcome(lambda _, outcome: replace(outcome, kind="drop") if outcome.ends_wait else outcome),),
    ),
    "an offer for one key counts at the other": Control(
        setting("a retry elsewhere", calls="ab'", exclusive=True, retries_elsewhere=1),
        "not all ends well",
        ((Delivery, "acquire", _offered_for_all),),
    ),
    "what comes again is done": Control(
        setting("a lost child", lost_children=1),
        "not all ends well any more (owed: a/1)",
        ((endings, "run_ended", _ended_for_good),),
    ),
    "what was admitted is skipped": Control(
        setting("a crash", crashes=1),
        "though it was admitted before",
        (_facts(_newcomer), (Delivery, "may_be_in_line", False)),
    ),
    "what leaves its lock for its unique key keeps the lock": Control(
        setting("a retry elsewhere", calls="ab'", exclusive=True, retries_elsewhere=1),
        "waits for v, and holds the lock",
        (_without(Release, lambda delivery: LOCK, Applied(True)),),
    ),
    "what has finished is offered its unique key again and again": Control(
        setting("a second delivery", exclusive=True, repeats=1),
        "not all ends well",
        (_without(Remove, _unique_key, Applied(True)),),
    ),
    "what takes a key over does not ask whether it has finished": Control(
        setting("a second delivery", crashes=1, repeats=1),
        "runs again, though it has finished",
        (_driven(_owning),),
    ),
    "copies of a run outlive the retry that has its key": Control(
        setting("a replacement", replacements=1, repeats=1),
        "runs again, though it has finished",
        (_without(Remove, _unique_key, Applied(True)),),
    ),
    "a retry begins though copies of the run that it follows may stay": Control(
        setting("a retry", calls="a", retries=1, lost_replies=1, repeats=1),
        "runs again, though it has finished",
        (_asking(_may_fail),),
    ),
    "a body begins though its leases may have expired": Control(
        setting("the store is away for long", exclusive=True, outages=1),
        "runs without its lease",
        ((slots, "_asks_anew", lambda *_: False),),
    ),
    "what asks anew is a copy of an offer like any other": Control(
        setting("until started", until="started", exclusive=True, late=False, outages=1),
        "not all ends well",
        (_facts(lambda delivery: replace(delivery, redelivered=False)),),
    ),
    "what asks anew, and has to wait, keeps its unique key from its copy": Control(
        setting("the store is away for long", exclusive=True, outages=1),
        "not all ends well any more (owed: a/1)",
        ((step._Step, "requeue", _requeues_before_its_copy),),
    ),
    "what goes back for want of an answer leaves its unique key to nobody": Control(
        setting("the store is away for long", exclusive=True, outages=1),
        "not all ends well any more (owed: a/1)",
        ((endings, "run_ended", _keys_left),),
    ),
    "what waits calls its own live run dead": Control(
        setting("a second delivery", exclusive=True, repeats=1),
        "runs without its lease",
        (_asking(lambda d, asked: Held(()) if asked.operation is None and asked.key == LOCK else asked),),
    ),
    "a retry has the lock of its run as soon as it is published": Control(
        setting("a kept lock", retries=1, **KEEPS),
        "runs beside a/1, whose retry it is",
        ((HandOver, "begin", _inherits_at_once),),
    ),
    "a run releases the lock that it leaves to its retry": Control(
        setting("a kept lock until started", until="started", retries=1, **KEEPS),
        "runs between the attempts of a",
        ((HandOver, "run_ended", _releases_all),),
    ),
    "a retry that has come early waits in line": Control(
        setting("a kept lock until started", until="started", retries=1, **KEEPS),
        "runs between the attempts of a",
        ((admission, "_is_held_for", lambda *_: False),),
    ),
    "the retry of a superseded run is a retry like any other": Control(
        setting("supersede: a retry", retries=1, **SUPERSEDE),
        "or is to end, without its body",
        (_facts(lambda delivery: replace(delivery, superseded_by=None)),),
    ),
    "the retry of a superseded run keeps the unique key": Control(
        setting("supersede: a retry", retries=1, **SUPERSEDE),
        "not all ends well",
        (_outcome(_keeps_key_of_superseded),),
    ),
    "a retry that is revoked keeps the lock": Control(
        setting("a kept lock: a retry is revoked", retries=1, revocations=1, **KEEPS),
        "not all ends well",
        ((plans, "retry_ended", lambda *_, **__: iter(())),),
    ),
    "a body begins without its last chance": Control(
        setting("last chances, two keys", exclusive=True, last_chances=True),
        "runs without its lease on x=celery_exclusive.last_chance",
        (_asking(lambda _, asked: Granted(1) if asked.key == LAST_CHANCE else asked),),
    ),
    "a task keeps its last chance while it waits for its lock": Control(
        setting(
            "last chances, two keys: a crash", until="started", exclusive=True, last_chances=True, crashes=1
        ),
        "not all ends well",
        (_asking(lambda _, asked: Applied(True) if _leaves_last_chance(asked) else asked),),
    ),
    "a duplicate that joins is not parked": Control(
        setting("join: two duplicates", calls="aBC", joins=True),
        "not all ends well",
        (_asking(_not_in_line),),
    ),
    "the end of a run is not noted for those that join it": Control(
        setting("join: two duplicates, one is revoked", calls="aBC", revocations=1, joins=True),
        "could have had the result of c",
        ((step._Step, "release", _notes_no_end),),
    ),
    "what has ended counts for later calls": Control(
        setting("join: two duplicates", calls="aBC", joins=True),
        "from before it was called",
        ((step, "step", _never_forgets),),
    ),
    "a duplicate that misses the end of the other runs": Control(
        setting("join: a duplicate", calls="aB", joins=True),
        "could have had the result of a",
        ((joining, "missed", lambda *_: LOST),),
    ),
    "a new call is dropped as others wait to join": Control(
        setting("join: a new call", calls="aBc", joins=True),
        "no other task has u",
        ((KeyState, "has_ahead", lambda state: bool(state.head())),),
    ),
    "each copy of a duplicate ends it": Control(
        setting("join: a slow queue", calls="aB", slow=1, joins=True),
        "ends a second time",
        ((joining, "has_to_look", _ends_any_copy),),
    ),
    "a duplicate fails that finds its key held when it begins": Control(
        setting("join: a queue longer than queued_ttl", calls="aB", backlogs=1, joins=True),
        "fails as a duplicate, and could join",
        ((admission, "_may_join", lambda delivery, _: delivery.duplicate_of is not None and delivery.joins),),
    ),
    "a body that begins does not release a key that is unique until then": Control(
        setting("until started", until="started"),
        "for the sake of a body that has begun",
        (_without(Release, _unique_key, Applied(True)),),
    ),
}
