"""The moves of workers with a delivery, from its admission to its end, except for its body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_exclusive.core.admission import Admission
from celery_exclusive.core.claim import LAST_CHANCE
from celery_exclusive.core.endings import is_obsolete_copy, lease_that_keeps_message
from celery_exclusive.core.operations import Acquire, Applied, Granted, Parked
from celery_exclusive.core.plan import Ask
from tests.explorer.messages import bodies, joining
from tests.explorer.messages.bodies import left_by, shown
from tests.explorer.messages.faults import crashed
from tests.explorer.messages.store import LOCK, MESSAGE
from tests.explorer.messages.world import Move, Slot, World

if TYPE_CHECKING:
    from tests.explorer.messages.model import Model


def moves(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    """Yield the next moves of this delivery, without the faults that may happen in any phase."""
    yield from _NEXT[slot.phase](model, world, slot)


# Before the body.


def _admit(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    if joining.has_to_look(model, slot):
        yield from joining.look(world, slot)
        return
    asked = model.plans.admit(slot)
    if isinstance(asked, Admission):  # it was sent as a duplicate
        yield Move(f"{slot.id}: {asked.kind}", _settle(model, world, world, slot, asked))
        return
    operation = asked.operation
    if isinstance(operation, Acquire):
        is_late = operation.redelivered or slot.may_be_late
        is_sent = asked.park or operation.recovers
        operation = replace(operation, redelivered=is_late, message=MESSAGE if is_sent else None)
    copy = slot.copy if asked.joins is None else slot.copy.as_duplicate_of(asked.joins)
    after, answer, wakes = model.ask(world, asked.key, operation, copy)
    label = f"{slot.copy} asks {asked.key}: {type(operation).__name__} -> {shown(answer)}"
    if isinstance(answer, Parked):
        model.is_parked(slot, asked.key)
        after = after.mark(slot.id, was_admitted=True, has_waited=True)
    if asked.joins and isinstance(answer, (Parked, Granted)):
        after = joining.waits_for(after, slot.id, asked.joins)
    label, settled = _answered(model, label, after, slot, answer)
    yield Move(label, settled.send(*wakes))
    if wakes and world.may("crashes"):
        yield Move(
            f"{label}, and dies before it has published what waits", crashed(model, after, slot), False
        )
    yield from _is_not_answered(model, world, slot, asked, after.send(*wakes), label)


def _is_not_answered(
    model: Model, world: World, slot: Slot, asked: Ask, after: World, label: str
) -> Iterator[Move]:
    """`after` is the world in which the store has done what it was asked."""
    is_acquire = isinstance(asked.operation, Acquire)
    again = slot._replace(may_be_late=slot.may_be_late or is_acquire, has_failed=True)
    if world.may("outages") and not asked.may_fail:
        for happened, how in ((after, "without a reply"), (world, "not asked")):
            expired = _expired(happened.spend("outages"), slot)
            yield Move(f"{label}: {how} for long", expired.put(slot, again), False)
            yield Move(f"{label}: {how} for long, and asks anew", expired.put(slot, _anew(again)), False)
            given_up = _given_up(model, happened.spend("outages"), slot)
            yield Move(f"{label}: {how} for long, and comes again", given_up, False)
    if world.may("lost_replies"):
        lost = after.spend("lost_replies")
        if is_acquire:
            yield Move(f"{label}, without a reply", lost.put(slot, again), False)
            yield Move(f"{label}: not asked", world.spend("lost_replies").put(slot, again), False)
        elif asked.may_fail:
            untaken = world.spend("lost_replies").mark(slot.id, has_no_key=True)
            for happened, how in ((lost, "without a reply"), (untaken, "not asked")):
                yield Move(*_answered(model, f"{label}: {how}", happened, slot, Applied(False)), False)
        else:
            yield Move(f"{label}, without a reply", lost.put(slot, again), False)


def _expired(world: World, slot: Slot) -> World:
    """The world in which all that this delivery was granted has expired."""
    for name in world.store.keys_of(slot.token):
        key = world.store.key(name)
        leases = tuple(lease for lease in key.leases if lease.token != slot.token)
        world = world._replace(store=world.store.put(name, key._replace(leases=leases)))
        if name not in (LOCK, LAST_CHANCE) and leases != key.leases:
            world = world.mark(slot.id, has_no_key=True)
    return world


def _given_up(model: Model, world: World, slot: Slot) -> World:
    """The world in which the message goes back, and its worker owes what the store may have granted."""
    left = world.put(slot, slot.given_up._replace(is_done=False, is_acked=True))
    if not model.setting.late:
        return left.send(slot.copy._replace(promoted=""))
    return left if slot.is_acked else left.send(model.returned(slot))


def _anew(slot: Slot) -> Slot:
    """The delivery as it asks for its keys again: `worker.execution.Execution.enter`."""
    is_granted = any(isinstance(answer, Granted) for answer in slot.answers)
    return slot._replace(answers=(), has_failed=False, is_anew=slot.is_anew or is_granted)


def _asks_anew(slot: Slot, outcome: Admission) -> bool:
    return outcome.kind == "run" and slot.has_failed


def _answered(model: Model, label: str, world: World, slot: Slot, answer: object) -> tuple[str, World]:
    """Return the store's answer, and the world after a delivery has got it."""
    changed = slot._replace(answers=(*slot.answers, answer))
    outcome = model.plans.admit(changed)
    if isinstance(outcome, Admission) and _asks_anew(changed, outcome):
        return f"{label}, and asks anew", world.put(slot, _anew(changed))
    if isinstance(outcome, Admission):
        return f"{label}, and is to {outcome.kind}", _settle(model, world, world, slot, outcome)
    return label, world.put(slot, changed)


def _settle(model: Model, world: World, at: World, slot: Slot, outcome: Admission) -> World:
    """Do what an outcome says. `at` is the world at the instant of the answer."""
    holds, has_lock = outcome.may_hold_unique, outcome.has_lock
    begun = slot._replace(answers=(), holds=holds, has_lock=has_lock)
    begun = begun._replace(may_be_late=False, has_failed=False, is_anew=False)
    if outcome.kind == "run":
        body = begun._replace(
            phase="body", has_body=True, result=slot.copy.message.task if model.setting.joins else ""
        )
        return model.begins(world, slot).put(slot, body)
    if outcome.kind == "join":
        asked = model.plans.admit(slot)
        assert isinstance(asked, Ask)
        copy = slot.copy.as_duplicate_of(asked.joins) if asked.joins else slot.copy
        return world.put(slot, begun._replace(copy=copy, phase="join", after=outcome.existing_id))
    if outcome.ends_wait and outcome.kind in ("skip", "fail"):
        return model.ends_wait(world, slot).put(slot, begun._replace(phase="over", ends_wait=True))
    if outcome.reason == "superseded":
        return world.put(slot, begun._replace(phase="over"))
    if outcome.kind in ("skip", "fail"):
        joining.fails(model, slot, outcome.existing_id)
        if not slot.copy.message.duplicate_of:
            model.is_skipped(at, slot.copy.message, outcome.key, slot.copy)
        return world.put(slot, begun._replace(phase="over"))
    if outcome.kind == "wait":
        model.waits(at, slot, outcome.key)
    return world.put(slot, begun._replace(phase="again" if outcome.kind == "reschedule" else "ack"))


def _again(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    copy = slot.copy._replace(promoted="")
    yield Move(
        f"{slot.id} is published again, for later", world.send(copy).put(slot, slot._replace(phase="ack"))
    )


def _revoked(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    """`worker.request.RequestMixin._announce_revoked`."""
    delivery = model.plans.delivery(slot)
    guard = lease_that_keeps_message(delivery)
    owed = slot._replace(phase="owed", is_discarded=True)
    world = world.mark(slot.id, keeps_lock=False, **model.lost(world, slot))
    if guard and delivery.promoted is not None:
        after, answer, wakes = model.ask(world, guard.key, delivery.acquire(guard))
        label = f"{slot.copy} is discarded, asks {guard.key}: {shown(answer)}"
        after = after.send(*wakes)
        if is_obsolete_copy(delivery, answer):
            yield Move(label, after.put(slot, slot._replace(phase="ack")))
        else:
            yield Move(label, after.mark(slot.id, is_owed=False, is_given_up=True).put(slot, owed))
    else:
        ended = world.mark(slot.id, is_owed=False, is_given_up=True)
        yield Move(f"{slot.copy} is discarded", ended.put(slot, owed))


# After the body.


def _leave(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    operations = model.plans.leave(slot)
    key, release = operations[len(slot.answers)]
    after, answer, wakes = model.ask(world, key, release)
    label = f"{slot.id} releases {key}: {shown(answer)}"
    changed = slot._replace(answers=(*slot.answers, answer))
    is_last = len(changed.answers) == len(operations)
    left = after.put(slot, left_by(slot) if is_last else changed)
    yield Move(label, left.send(*wakes))
    if wakes and world.may("crashes"):
        yield Move(
            f"{label}, and dies before it has published what waits", crashed(model, after, slot), False
        )
    if world.may("lost_replies"):
        yield Move(f"{label}, without a reply", after.send(*wakes).spend("lost_replies"), False)


def _owed(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    operations = model.plans.run_ended(slot)
    key, release = operations[len(slot.answers)]
    after, answer, wakes = model.ask(world, key, release)
    changed = slot._replace(answers=(*slot.answers, answer))
    left = after.put(slot, None if len(changed.answers) == len(operations) else changed)
    yield Move(f"the worker releases {key} for {slot.id}: {shown(answer)}", left.send(*wakes))


def _return(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    left = world.put(slot, None)
    returned = left if slot.is_acked else left.send(model.returned(slot))
    yield Move(f"{slot.id} goes back to its broker", returned)


def _ack(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    yield Move(f"{slot.id} is acknowledged", world.put(slot, None))


_NEXT = {
    "admit": _admit,
    "join": joining.join,
    "revoked": _revoked,
    "body": bodies.body,
    "keep": bodies.keep,
    "publish": bodies.publish,
    "send": bodies.send,
    "undo": bodies.undo,
    "over": bodies.over,
    "store": bodies.store,
    "leave": _leave,
    "again": _again,
    "return": _return,
    "ack": _ack,
    "owed": _owed,
}
