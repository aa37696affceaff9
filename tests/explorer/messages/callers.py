"""The moves of processes that publish a message, as `publishing.unique_publish` has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_exclusive.core.operations import (
    AcquireAlone,
    Answer,
    Applied,
    GiveUp,
    Granted,
    Held,
)
from celery_exclusive.core.plan import Ask
from celery_exclusive.core.publishing import Sending
from tests.explorer.messages import joining
from tests.explorer.messages.world import Caller, Copy, Fate, Message, Move, World
from tests.explorer.model import Violation

if TYPE_CHECKING:
    from tests.explorer.messages.model import Model


def moves(model: Model, world: World) -> Iterator[Move]:
    alike = set()
    for caller in world.callers:
        is_named = model.plans.has_given_id(caller.message)
        kind = (caller.how, caller.message.key, is_named and caller.message.task, caller.is_repeated)
        if caller.phase == "late":
            yield from _arrives(model, world, caller)
        elif caller.phase == "idle":
            if kind not in alike:  # calls are alike until one is made
                yield from _calls(model, world, caller)
            alike.add(kind)
        elif caller.phase == "send":
            yield from _sends(world, caller)
        else:
            yield from _gives_back(model, world, caller)


def sent(world: World, message: Message, *, holds: bool) -> World:
    """The world in which the broker has this message."""
    before = world.fate(message.id)
    if before.is_sent:
        raise Violation(f"{message.id} is sent twice")
    if before.is_unsent:
        raise Violation(f"{message.id} is sent, and its publisher was told that it is not")
    has_no_key = before.has_no_key or not (message.is_acquired and holds)
    fate = Fate(
        was_admitted=message.is_retry,
        is_excused=before.is_excused,
        has_no_key=has_no_key,
        is_sent=True,
        waits_for=before.waits_for,
        ended_before=before.ended_before,
    )
    return world.send(Copy(message)).mark(message.id, **fate._asdict())


def _calls(model: Model, world: World, caller: Caller) -> Iterator[Move]:
    if model.setting.sends:
        yield from _pushes(model, world, caller)
        return
    call, message = model.plans.call(caller), caller.message
    asked = model.plans.publish(call, ())
    assert isinstance(asked, Ask)
    acquired, answer, wakes = model.ask(world, asked.key, asked.operation)
    sending = model.plans.publish(call, (answer,))
    if not isinstance(sending, Sending):
        raise Violation("a call asks twice")
    label = f"{message.id} is called, asks {asked.key}: {_shown(answer)}, and is to {sending.kind}"
    awoken = acquired.send(*wakes)
    if sending.kind in ("skip", "error") and caller.how != "call":
        raise Violation(f"{message.id} is not sent, and others wait for its result")
    if sending.kind == "skip":
        model.is_skipped(acquired, message, message.key)
        yield Move(label, awoken.put_caller(caller, None))
    elif sending.kind == "error":
        raise Violation(f"{message.id} is an error, outside a body")
    else:
        if sending.kind == "duplicate":
            model.is_skipped(acquired, message, message.key)
        else:
            model.is_published(acquired, message)
        awoken = joining.published(model, world, awoken, message, sending)
        marked = message._replace(duplicate_of=sending.existing_id if sending.kind == "duplicate" else "")
        yield Move(label, awoken.put_caller(caller, Caller(caller.how, marked, "send", sending.may_hold)))
    if world.may("lost_replies"):
        untaken = message._replace(is_acquired=False)
        phase = "owe" if caller.how == "call" else "send"
        lost = Caller(caller.how, untaken, phase, holds=True)
        spent = awoken.spend("lost_replies").put_caller(caller, lost).mark(message.id, waits_for=())
        yield Move(f"{message.id} is called, asks {asked.key}, and gets no reply", spent, is_progress=False)


def _pushes(model: Model, world: World, caller: Caller) -> Iterator[Move]:
    """The step that grants the key sends the message, too: `publishing.asking.AskingPublish`."""
    call, message = model.plans.call(caller), caller.message
    done, answer, label = _asked_to_push(model, world, caller)
    sending = model.plans.publish(call, (answer,))
    assert isinstance(sending, Sending)
    by = [owner.id for owner in answer.by] if isinstance(answer, Held) else [message.id]
    if by[:1] == [message.id]:  # it is sent, or was, and runs already, or has finished
        if not done.fate(message.id).is_sent:
            raise Violation(f"{message.id} counts as sent, and was not")
        yield Move(label, done.put_caller(caller, None))
    else:
        if by:
            model.is_skipped(done, message, message.key)
        told_of = message._replace(duplicate_of=sending.existing_id)
        if sending.kind == "skip":
            yield Move(label, done.mark(message.id, is_unsent=True).put_caller(caller, None))
        else:
            yield Move(label, done.put_caller(caller, caller._replace(message=told_of, phase="send")))
    if world.may("lost_replies"):
        late = Caller(caller.how, message, "late")
        on_its_way = world._replace(callers=(*world.callers, late))
        for happened, how in ((done, "gets no reply"), (on_its_way, "gets no reply, and it comes later")):
            spent, words = happened.spend("lost_replies"), f"{label}, and {how}"
            yield Move(f"{words}: again", spent.put_caller(caller, caller._replace(is_repeated=True)), False)
            if caller.how == "call":
                owes = spent.put_caller(caller, caller._replace(phase="owe"))
                yield Move(f"{words}: an error", owes, False)


def _arrives(model: Model, world: World, caller: Caller) -> Iterator[Move]:
    done, _, label = _asked_to_push(model, world, caller)
    yield Move(
        f"{label}, long after its publisher has given up to wait", done.put_caller(caller, None), False
    )
    yield Move(f"the request of {caller.message.id} never arrives", world.put_caller(caller, None))


def _asked_to_push(model: Model, world: World, caller: Caller) -> tuple[World, Answer, str]:
    """The world after the store has done what a call asks, and the answer."""
    call, message = model.plans.call(caller), caller.message
    asked = model.plans.publish(call, ())
    assert isinstance(asked, Ask)
    assert isinstance(asked.operation, AcquireAlone)
    had_lease = message.id in [lease.id for lease in world.store.key(asked.key).leases]
    push = replace(asked.operation, sends=True, repeated=caller.is_repeated)
    after, answer, wakes = model.ask(world, asked.key, push)
    after = after.send(*wakes)
    if isinstance(answer, Granted) and not had_lease:
        model.is_published(after, message)
        after = sent(after, message, holds=True)
    return after, answer, f"{message.id} is called, asks {asked.key}: {_shown(answer)}"


def _sends(world: World, caller: Caller) -> Iterator[Move]:
    id = caller.message.id
    yield Move(f"{id} is sent", sent(world, caller.message, holds=caller.holds).put_caller(caller, None))
    undo = caller._replace(phase="undo") if caller.holds else None
    if world.may("refusals"):
        refused = world.spend("refusals").put_caller(caller, undo)
        yield Move(f"{id} cannot be sent", refused, is_progress=False)
    if world.may("interruptions") and undo:
        both = sent(world, caller.message, holds=False).spend("interruptions").put_caller(caller, undo)
        yield Move(f"{id} is sent, and its call fails", both, is_progress=False)
    if world.may("crashes"):
        dead = world.spend("crashes").put_caller(caller, None).mark(id, is_excused=True)
        yield Move(f"the publisher of {id} dies before it is sent", dead, is_progress=False)


def _gives_back(model: Model, world: World, caller: Caller) -> Iterator[Move]:
    call = model.plans.call(caller)
    undo = call.claim.release("open") if caller.phase == "owe" else model.plans.unpublished(call)
    if model.setting.sends and caller.phase == "owe":
        undo = GiveUp(call.claim.id, releases=True)
    released, answer, wakes = model.ask(world, call.claim.key, undo)
    if isinstance(undo, GiveUp) and answer == Applied(True):
        if world.fate(call.claim.id).is_sent:
            raise Violation(f"{call.claim.id} loses its key, and was sent")
        released = released.mark(call.claim.id, is_unsent=True)
    released = released.send(*wakes)
    yield Move(f"{caller.message.id} gives its key back: {_shown(answer)}", released.put_caller(caller, None))
    if world.may("lost_replies"):
        lost = released.spend("lost_replies")
        yield Move(f"{caller.message.id} gives its key back, without a reply", lost, is_progress=False)


def _shown(answer: object) -> str:
    return str(answer).partition("(")[0]
