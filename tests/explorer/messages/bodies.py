"""The moves of a run from its body to its result: it publishes, and releases its unique key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.endings import lease_that_keeps_message
from celery_exclusive.core.operations import Applied, Granted
from celery_exclusive.core.publishing import Sending
from tests.explorer.messages import joining
from tests.explorer.messages.callers import sent
from tests.explorer.messages.store import LOCK
from tests.explorer.messages.world import Message, Move, Phase, Publication, Slot, World
from tests.explorer.model import Violation

if TYPE_CHECKING:
    from tests.explorer.messages.model import Model


def body(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    if slot.forgotten:
        claims = [c for c in model.plans.delivery(slot).leases if c.key == slot.forgotten[0]]
        after, answer, wakes = model.ask(world, claims[0].key, claims[0].restore())
        restored = slot._replace(forgotten=slot.forgotten[1:])
        label = f"the heartbeat puts the lease of {slot.id} on {claims[0].key} back: {shown(answer)}"
        yield Move(label, after.send(*wakes).put(slot, restored))
    yield from over(model, world, slot)
    if world.may("rejects") and model.setting.late:
        returns = slot._replace(is_done=False)
        rejected = world.spend("rejects").put(slot, returns).mark(slot.id, is_excused=True)
        for label, after, _ in over(model, rejected, returns):
            yield Move(f"{label}, and its message is to come again", after, False)
    for how, budget in _PUBLICATIONS.items():
        if world.may(budget):
            message = _next(world, slot, how)
            if message.is_retry and model.setting.on_conflict == "supersede":
                message = message._replace(superseded_by=_newer_call(world, slot))
            keeps = how == "retry" and model.setting.keeps and slot.has_lock and not slot.hand_over
            phase: Phase = "keep" if keeps and not message.superseded_by else "publish"
            publishes = slot._replace(phase=phase, next=(how, message))
            yield Move(f"{slot.id} is to publish: {how}", world.spend(budget).put(slot, publishes), False)


_PUBLICATIONS: dict[Publication, str] = {
    "retry": "retries",
    "retry elsewhere": "retries_elsewhere",
    "replacement": "replacements",
    "inner": "inner",
    "inner member": "inner_members",
}


def _newer_call(world: World, slot: Slot) -> str:
    """The task that is to supersede this run: `stores.base.Snapshot.newer_than`."""
    line, own = world.store.key(LOCK).line, slot.copy.message.task
    newer = [task_id(it.id) for it in line if it.replaceable and not it.was_offered and it.state == "waiting"]
    return next((task for task in reversed(newer) if task != own), "")


def _next(world: World, slot: Slot, how: Publication) -> Message:
    message = slot.copy.message
    if how in ("retry", "retry elsewhere", "replacement"):
        key = message.key if how != "retry elsewhere" else "u" if message.key == "v" else "v"
        is_retry, number = how != "replacement", _next_number(world, message.task)
        parent = "" if is_retry else message.task
        return Message(message.task, number, key, parent=parent, is_retry=is_retry)
    tasks = {fate[0][0] for fate in world.fates} | {caller.message.task for caller in world.callers}
    tasks |= {slot.next[1].task for slot in world.slots if slot.next}
    task = min(set("mnop") - tasks)
    parent = message.task if how == "step" else ""
    return Message(task, 1, message.key, parent=parent, is_awaited=how == "inner member")


def _next_number(world: World, task: str) -> int:
    ids = [id for id, _ in world.fates] + [slot.next[1].id for slot in world.slots if slot.next]
    return 1 + max(int(id.partition("/")[2]) for id in ids if id.startswith(f"{task}/"))


def over(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    """The body ends, and its unique key is released first: `run_leases.LeasedRun.end_body`."""
    release = model.plans.body_ended(slot) if slot.holds else None
    ended, label, wakes = slot, f"{slot.id} ends", ()
    if release:
        key = slot.copy.message.key
        world, answer, wakes = model.ask(world, key, release)
        label += f", asks {key}: {shown(answer)}"
        if answer == Applied(True):
            world = joining.ended(world, slot)
            ended = slot._replace(holds=model.plans.will_be_redelivered(slot))
    left = world.send(*wakes)
    yield Move(label, _stores(model, left.put(slot, ended), ended))
    if release and world.may("lost_replies"):
        lost = _stores(model, left.spend("lost_replies").put(slot, slot), slot)
        yield Move(f"{label}, without a reply", lost, False)
    if world.may("steps") and slot.is_done:
        publishes = ended._replace(phase="publish", next=("step", _next(world, slot, "step")))
        yield Move(f"{label}, and publishes the next step", left.spend("steps").put(slot, publishes), False)


# What a run publishes.


def keep(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    """Leave the lock to a retry: `worker.run_leases.LeasedRun.hand_over_lock`."""
    assert slot.next
    message = slot.next[1]._replace(keeps_lock=True)
    leaves = slot._replace(phase="publish", next=("retry", message), hand_over=message.id)
    after, answer, wakes = model.ask(world, LOCK, model.plans.hand_over(leaves).begin())
    left, label = after.send(*wakes), f"{slot.id} leaves its lock to {message.id}: {shown(answer)}"
    if isinstance(answer, Granted):
        yield Move(label, left.put(slot, leaves._replace(is_handed_over=True)))
    else:
        yield Move(label, left.put(slot, slot._replace(phase="publish")))
    if world.may("lost_replies"):
        # Its lease is held under another id than the heartbeat renews.
        moved = left.mark(slot.id, is_excused=True)
        for lost, words in ((moved, "without a reply"), (world, "not asked")):
            yield Move(f"{label}: {words}", lost.spend("lost_replies").put(slot, leaves), False)


def publish(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    assert slot.next
    call, (how, message) = model.plans.call_of_run(slot), slot.next
    message = message._replace(follows=slot.id if call.inherits else "")
    asked = model.plans.publish(call, ())
    if isinstance(asked, Sending):  # the retry of a task whose key belongs to a period
        yield Move(f"{message.id} is to {asked.kind}", world.put(slot, slot._replace(phase="send")))
        return
    after, answer, wakes = model.ask(world, asked.key, asked.operation)
    sending = model.plans.publish(call, (answer,))
    assert isinstance(sending, Sending)
    label = f"{slot.id} publishes {message.id}, asks {asked.key}: {shown(answer)}, and is to {sending.kind}"
    awoken = joining.published(model, world, after.send(*wakes), message, sending)
    _check(world, slot, sending)
    if sending.kind in ("skip", "duplicate"):
        model.is_skipped(after, message, message.key)
    if sending.kind in ("skip", "error"):
        yield Move(label, awoken.put(slot, slot._replace(phase="body", next=None)))
    else:
        told_of = message._replace(duplicate_of=sending.existing_id if sending.kind == "duplicate" else "")
        sends = slot._replace(phase="send", next=(how, told_of), next_holds=sending.may_hold)
        hands_over = sending.may_hold and call.inherits is not None
        handed = awoken.mark(slot.id, has_handed_over=True) if hands_over else awoken
        yield Move(label, handed.put(slot, sends))
    if world.may("lost_replies") and call.has_to_be_sent:
        untaken = slot._replace(
            phase="send", next=(how, message._replace(is_acquired=False)), next_holds=True
        )
        for lost, words in ((awoken, "without a reply"), (world, "not asked")):
            yield Move(f"{label}: {words}", lost.spend("lost_replies").put(slot, untaken), False)


def _check(world: World, slot: Slot, sending: Sending) -> None:
    """Check whether a run may send, or may leave unsent, the message that it publishes."""
    assert slot.next
    how, message = slot.next
    leases = world.store.key(message.key).leases
    has_key = (slot.id, slot.token) in [(lease.id, lease.token) for lease in leases]
    if sending.kind in ("skip", "error") and how != "inner":
        raise Violation(f"{message.id} is not sent, though it goes on with a task, or others wait for it")
    if message.is_retry and sending.kind != "send":
        raise Violation(f"{message.id} is a retry, and sent as a duplicate")
    if how in ("retry", "replacement") and has_key and not sending.may_hold:
        raise Violation(f"{message.id} does not get the key of {slot.id}, which it goes on with")
    if how == "inner" and has_key and sending.kind != "error":
        raise Violation(f"{slot.id} publishes its own key, and is not told that this would be skipped")
    if sending.kind == "error" and not has_key:
        raise Violation(f"{message.id} is an error, and {slot.id} does not have its key")


def send(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    assert slot.next
    message = slot.next[1]
    yield Move(f"{message.id} is sent", _published(model, _sent(world, slot), slot))
    if world.may("refusals"):
        refused = world.spend("refusals")
        label = f"{message.id} cannot be sent"
        yield Move(label, _fails(model, refused, slot), False)
    if world.may("interruptions") and slot.next_holds:
        both = _sent(world, slot, holds=False).spend("interruptions").mark(message.id, keeps_lock=False)
        paused = slot._replace(is_paused=True)  # its key is the key of the sent message, if that has begun
        both = _fails(model, both.put(slot, paused), paused)
        yield Move(f"{message.id} is sent, and its publisher gets an error", both, False)


def _sent(world: World, slot: Slot, *, holds: bool | None = None) -> World:
    assert slot.next
    message = slot.next[1]
    world = sent(world, message, holds=slot.next_holds if holds is None else holds)
    return world.mark(message.id, keeps_lock=slot.is_handed_over and message.id == slot.hand_over)


def _fails(model: Model, world: World, slot: Slot) -> World:
    if slot.next_holds:
        return world.put(slot, slot._replace(phase="undo"))
    return _published(model, world, slot, is_sent=False)


def undo(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    call = model.plans.call_of_run(slot)
    after, answer, wakes = model.ask(world, call.claim.key, model.plans.unpublished(call))
    label = f"{call.claim.id} gives its key back: {shown(answer)}"
    yield Move(label, _published(model, after.send(*wakes), slot, is_sent=False))
    if world.may("lost_replies"):
        yield Move(f"{label}, without a reply", after.send(*wakes).spend("lost_replies"), False)


def _published(model: Model, world: World, slot: Slot, *, is_sent: bool = True) -> World:
    """The run goes on: with its body, with the end of its body, or with its own end."""
    assert slot.next
    how, gone = slot.next[0], slot._replace(next=None, next_holds=False)
    if is_sent and slot.next[1].id == slot.hand_over:
        gone = gone._replace(has_retried=True)
    if how == "step":
        return _stores(model, world.put(slot, gone), gone)
    world = world if is_sent else world.mark(slot.id, has_handed_over=False)
    if how in ("inner", "inner member") or not is_sent:
        return world.put(slot, gone._replace(phase="body"))
    return world.put(slot, gone._replace(phase="over", result=""))


# The result.


def _stores(model: Model, world: World, slot: Slot) -> World:
    """Store the result, in a move of its own if that of another task may be read."""
    if model.setting.joins and slot.is_done:
        return world.put(slot, slot._replace(phase="store"))
    return leaves(model, world, slot)


def store(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    stored = world.mark(slot.id, result=slot.result) if slot.result else world
    yield Move(f"{slot.id} stores the result of {slot.result or 'nothing'}", leaves(model, stored, slot))


def leaves(model: Model, world: World, slot: Slot) -> World:
    """The move of a delivery whose result is stored: release its keys, if it has any."""
    if slot.is_done:
        world = world.mark(slot.id, is_owed=False)
        guard = lease_that_keeps_message(model.plans.delivery(slot))
        is_at_once = not model.setting.joins  # since the release of its unique key
        if guard and slot.has_body and is_at_once and not slot.is_paused:
            key = world.store.key(guard.key)
            has_copies = {place.id: True for place in key.line}  # but a kept message is none
            has_copies |= {lease.id: lease.waited for lease in key.leases}
            has_handed_over = world.fate(slot.id).has_handed_over
            if slot.is_handed_over or (has_copies.get(slot.id) and not has_handed_over):
                world = world.mark(slot.id, is_closed=True)
    leaves = slot._replace(phase="leave", answers=())
    return world.put(slot, leaves if model.plans.leave(leaves) else left_by(slot))


def left_by(slot: Slot) -> Slot:
    return slot._replace(phase="ack" if slot.is_done else "return", answers=(), is_paused=False, forgotten=())


def shown(answer: object) -> str:
    return str(answer) if isinstance(answer, Applied) else type(answer).__name__
