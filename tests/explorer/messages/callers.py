"""What processes do that publish a message: `publishing.unique_publish.UniquePublish`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_exclusive.core.plan import Ask
from celery_exclusive.core.publishing import Sending
from tests.explorer.messages.world import Caller, Copy, Fate, Message, Move, World
from tests.explorer.model import Violation

if TYPE_CHECKING:
    from tests.explorer.messages.model import Model


def moves(model: Model, world: World) -> Iterator[Move]:
    alike = set()
    for caller in world.callers:
        is_named = model.plans.call(caller).has_given_id
        kind = (caller.how, caller.message.key, is_named and caller.message.task)
        if caller.phase == "idle":
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
    has_no_key = before.has_no_key or not (message.is_acquired and holds)
    fate = Fate(was_admitted=message.is_retry, is_excused=before.is_excused, has_no_key=has_no_key)
    return world.send(Copy(message)).mark(message.id, **fate._asdict())


def _calls(model: Model, world: World, caller: Caller) -> Iterator[Move]:
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
        marked = message._replace(duplicate_of=sending.existing_id if sending.kind == "duplicate" else "")
        yield Move(label, awoken.put_caller(caller, Caller(caller.how, marked, "send", sending.may_hold)))
    if world.may("lost_replies"):
        untaken = message._replace(is_acquired=False)
        phase = "send" if call.has_to_be_sent else "owe"
        lost = Caller(caller.how, untaken, phase, holds=True)
        spent = awoken.spend("lost_replies").put_caller(caller, lost)
        yield Move(f"{message.id} is called, asks {asked.key}, and gets no reply", spent, is_progress=False)


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
    released, answer, wakes = model.ask(world, call.claim.key, undo)
    released = released.send(*wakes)
    yield Move(f"{caller.message.id} gives its key back: {_shown(answer)}", released.put_caller(caller, None))
    if world.may("lost_replies"):
        lost = released.spend("lost_replies")
        yield Move(f"{caller.message.id} gives its key back, without a reply", lost, is_progress=False)


def _shown(answer: object) -> str:
    return str(answer).partition("(")[0]
