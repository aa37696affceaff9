"""The moves of duplicates that end as another task has: `Execution.end_with_other` and `Execution.join`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from celery_exclusive.core.claim import task_id
from tests.explorer.messages.world import LOST, Message, Move, Slot, World
from tests.explorer.model import Violation

if TYPE_CHECKING:
    from celery_exclusive.core.publishing import Sending
    from tests.explorer.messages.model import Model

_UNREAD = "no result"


def published(model: Model, before: World, world: World, message: Message, sending: Sending) -> World:
    """The world in which a call was made: what has ended before, and has left the key, is too old for it."""
    if not (model.setting.joins and message.is_awaited):
        return world
    key = before.store.key(message.key)
    owners = [*(lease.id for lease in key.leases), *(place.id for place in key.line)]
    known = {*map(task_id, owners), *chain(*(before.fate(owner).waits_for for owner in owners))}
    too_old = {task_id(id) for id, fate in before.fates if fate.has_begun} - known
    is_duplicate = sending.kind == "duplicate" and sending.existing_id != message.parent
    world = world.mark(message.id, ended_before=tuple(sorted(too_old)))
    return waits_for(world, message.id, sending.existing_id) if is_duplicate else world


def waits_for(world: World, id: str, task: str) -> World:
    return world.mark(id, waits_for=tuple(sorted({*world.fate(id).waits_for, task})))


def has_to_look(model: Model, slot: Slot) -> bool:
    message = slot.copy.message
    is_asked = slot.has_looked or slot.answers or message.duplicate_of in ("", message.parent)
    return model.plans.joins(slot) and not (is_asked or slot.copy.is_back)


def look(world: World, slot: Slot) -> Iterator[Move]:
    """End a duplicate whose task has ended, without its key."""
    key, existing = slot.copy.message.key, slot.copy.message.duplicate_of
    owners = [task_id(lease.id) for lease in world.store.key(key).leases]
    has_ended = existing not in owners
    result = world.result_of(existing)
    if result not in ("", LOST):
        yield Move(f"{slot.copy} ends as {existing}", _end_as(world, slot, result))
    elif result or not has_ended or not _is_coming(world, existing):
        looked = world.put(slot, slot._replace(has_looked=True))
        yield Move(f"{slot.copy} sees no result of {existing}", looked)


def join(_: Model, world: World, slot: Slot) -> Iterator[Move]:
    """End as the task that held the key before has ended, or run, if that was lost."""
    other = slot.after
    result = world.result_of(other) if other else LOST
    if result == LOST and slot.copy.message.duplicate_of not in ("", other):
        other = slot.copy.message.duplicate_of
        result = missed(world, other)
    if result == LOST:
        holder = slot.copy.message._replace(duplicate_of="", is_acquired=True)
        holds = slot._replace(copy=slot.copy._replace(message=holder), phase="admit", after="", holds=False)
        runs = world.mark(slot.id, has_no_key=False).put(slot, holds)
        yield Move(f"{slot.id} is to run, since {other} is lost", runs)
    elif result:
        yield Move(f"{slot.id} ends as {other}", _end_as(world, slot, result))
    elif not _is_coming(world, other):
        if not _is_excused(world, other):
            raise Violation(f"{slot.id} ends without a result, though {other} has ended")
        yield Move(f"{slot.id} fails, as {other} has no result", _end_as(world, slot, _UNREAD))


def missed(world: World, other: str) -> str:
    """Return the result of a task that has ended before its duplicate was in line."""
    return world.result_of(other) or ("" if _is_coming(world, other) else LOST)


def begins(world: World, slot: Slot) -> World:
    """The world in which a body has begun: could it have had the result of another one?"""
    fate, task = world.fate(slot.id), slot.copy.message.task
    for id, other in world.fates:
        if task in other.ended_before:
            world = world.mark(id, ended_before=tuple(old for old in other.ended_before if old != task))
    if fate.has_begun:
        return world
    for id, other in world.fates:
        is_usable = other.result == task_id(id) != task and not other.is_excused
        if is_usable and other.result in fate.waits_for:
            raise Violation(f"{slot.id} runs, and could have had the result of {other.result}")
    return world


def ended(world: World, slot: Slot) -> World:
    """The world in which a body has ended, and its key is released: those in line may have its result."""
    for place in world.store.key(slot.copy.message.key).line:
        if place.joins and slot.has_body:
            world = waits_for(world, place.id, slot.copy.message.task)
    return world


def fails(model: Model, slot: Slot, existing: str) -> None:
    """A delivery ends as a duplicate: could it join the other?"""
    if model.plans.joins(slot) and existing != slot.copy.message.parent:
        raise Violation(f"{slot.id} fails as a duplicate, and could join {existing}")


def _end_as(world: World, slot: Slot, result: str) -> World:
    fate = world.fate(slot.id)
    if result in fate.ended_before:
        raise Violation(f"{slot.id} ends with the result of {result}, from before it was called")
    if fate.is_over and not fate.is_excused:
        raise Violation(f"{slot.id} ends a second time by our own doing")
    ended = slot._replace(phase="over", result=result, after="", holds=True, has_lock=True)
    return world.mark(slot.id, is_over=True).put(slot, ended)


def _is_coming(world: World, task: str) -> bool:
    """Whether a body of this task has ended, and its worker is about to store the result."""
    return any(
        slot.copy.message.task == task
        and (slot.phase == "store" or bool(slot.next and slot.next[0] == "step"))
        for slot in world.slots
    )


def _is_excused(world: World, task: str) -> bool:
    return any(fate.is_excused for id, fate in world.fates if task_id(id) == task)
