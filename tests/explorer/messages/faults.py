"""The faults: processes die, leases and offers expire, messages come twice, a store loses its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_exclusive.core.endings import lease_that_keeps_message
from celery_exclusive.core.operations import Parked
from tests.explorer.messages.store import KEYS, LATER, LOCK, MUCH_LATER, NOW, Lease, Place, Store
from tests.explorer.messages.world import Move, Slot, World

if TYPE_CHECKING:
    from tests.explorer.messages.model import Model


def of_slot(model: Model, world: World, slot: Slot) -> Iterator[Move]:
    """Yield the faults that may happen to a delivery in any phase."""
    if world.may("crashes"):
        yield Move(f"the worker of {slot.copy} ({slot.phase}) dies", crashed(model, world, slot), False)
    if not slot.is_alive:
        return
    if world.may("repeats") and not slot.is_acked:
        again = world.spend("repeats").put(slot, slot._replace(is_acked=True)).send(model.returned(slot))
        is_first = slot.phase == "admit" and not slot.copy.is_back
        is_overtaken = is_first or world.fate(slot.id).is_overtaken
        again = again.mark(slot.id, is_excused=True, is_overtaken=is_overtaken)
        yield Move(f"{slot.copy} ({slot.phase}) is delivered again", again, False)
    if world.may("revocations") and slot.phase == "admit" and not slot.answers and not slot.may_be_late:
        revoked = world.spend("revocations").put(slot, slot._replace(phase="revoked"))
        yield Move(f"{slot.copy} is revoked", revoked, False)
    if slot.phase in ("ack", "return", "revoked"):
        return
    dead = slot.given_up
    if world.may("kills"):
        ended = excuse(world.spend("kills"), slot).mark(slot.id, is_owed=False, is_given_up=True)
        ended = ended.mark(slot.id, **model.lost(world, slot))
        ended = ended.put(slot, dead._replace(is_done=True, is_acked=True))
        yield Move(f"the child of {slot.copy} ({slot.phase}) dies, its task has failed", ended, False)
    if world.may("lost_children") and model.setting.late:
        gone = excuse(world.spend("lost_children"), slot)
        gone = gone.put(slot, dead._replace(is_done=False, is_acked=True))
        gone = gone if slot.is_acked else gone.send(model.returned(slot))
        yield Move(f"the child of {slot.copy} ({slot.phase}) dies, its message goes back", gone, False)


def crashed(model: Model, world: World, slot: Slot) -> World:
    """The world in which the worker of a delivery is dead."""
    dead = excuse(world.spend("crashes").put(slot, None), slot)
    if model.setting.late:
        is_hidden = model.setting.recovers and (dead.store.has_parked(slot.id) or _runs(model, dead, slot))
        returned = model.returned(slot)._replace(is_hidden=is_hidden)
        return dead if slot.is_acked or not slot.is_alive else dead.send(returned)
    elsewhere = slot.phase in ("admit", "ack", "again", "revoked") and (
        dead.store.has_parked(slot.id)
        or any(copy.message.id == slot.id for copy in dead.queue)
        or any(
            other.id == slot.id and other.phase == "admit" and not _has_parked(other) for other in dead.slots
        )
    )
    return dead if elsewhere else dead.mark(slot.id, is_owed=False)


def _runs(model: Model, world: World, slot: Slot) -> bool:
    """Whether a delivery runs with the lease that its message is kept behind."""
    guard = lease_that_keeps_message(model.plans.delivery(slot))
    if guard is None:
        return False
    return (slot.id, slot.token, "running") in [
        (lease.id, lease.token, lease.phase) for lease in world.store.key(guard.key).leases
    ]


def excuse(world: World, slot: Slot) -> World:
    """Plain Celery may run this message again, and what it has may end by its time."""
    world = world.mark(slot.id, is_excused=True, is_closed=False)
    # Its lease is released, or expires: it waits in line.
    if slot.hand_over and world.fate(slot.hand_over).is_sent:
        world = world.mark(slot.hand_over, keeps_lock=False)
    return world.mark(slot.next[1].id, is_excused=True, is_owed=False) if slot.next else world


def of_clock(model: Model, world: World) -> Iterator[Move]:
    """Leases and offers expire."""
    for name in KEYS:
        key = world.store.key(name)
        for lease in key.leases:
            expired = world._replace(store=world.store.put(name, key.without_lease(lease)))
            yield from _expire(world, name, lease, expired)
        for number, place in enumerate(key.line):
            if place.deadline == LATER:
                line = (*key.line[:number], place._replace(deadline=NOW), *key.line[number + 1 :])
                over = world._replace(store=world.store.put(name, key._replace(line=line, is_due=True)))
                if place.over is None or not _is_underway(world, name, place):
                    yield Move(f"the deadline of {place.id} comes", over)
                elif world.may("slow"):
                    label = f"the deadline of {place.id} comes, though its copy is underway"
                    yield Move(label, over.spend("slow"), False)
            if place.is_offered:
                line = (*key.line[:number], place._replace(is_offered=False), *key.line[number + 1 :])
                expired = world._replace(store=world.store.put(name, key._replace(line=line)))
                if not _is_underway(world, name, place):
                    yield Move(f"the offer of {name} to {place.id} expires", expired)
                elif world.may("slow"):
                    label = f"the offer of {name} to {place.id} expires, though its copy is underway"
                    yield Move(label, expired.spend("slow"), False)


def _expire(world: World, name: str, lease: Lease, expired: World) -> Iterator[Move]:
    label, fate = f"the lease of {lease.id} on {name} expires", world.fate(lease.id)
    owners = [slot for slot in world.slots if slot.is_alive and slot.token == lease.token]
    if lease.phase == "period":
        yield Move(label, expired)
    elif owners:
        if world.may("pauses"):
            paused = expired.spend("pauses").put(owners[0], owners[0]._replace(is_paused=True))
            yield Move(f"{label}, since its worker was paused", excuse(paused, owners[0]), False)
    elif lease.expiry == MUCH_LATER and _has_a_message(world, lease.id):
        if world.may("backlogs"):
            late = expired.spend("backlogs").mark(lease.id, is_excused=True)
            yield Move(f"{label}, since its message waits for too long", late, False)
    elif fate.is_excused or (name == LOCK and lease.phase == "running" and not fate.has_begun):
        yield Move(label, expired)  # the latter is the lease of a dead run that has left it to its retry


def _has_a_message(world: World, id: str) -> bool:
    return (
        any(copy.message.id == id for copy in world.queue)
        or any(
            slot.id == id or (slot.next and slot.next[1].id == id) for slot in world.slots if slot.is_alive
        )
        or any(caller.message.id == id for caller in world.callers)
        or world.store.has_parked(id)
    )


def _is_underway(world: World, name: str, place: Place) -> bool:
    copies = [*world.queue, *(slot.copy for slot in world.slots if slot.phase in ("admit", "revoked"))]
    return any(
        copy.message.id == place.id and copy.promoted and copy.offered == name and not copy.is_hidden
        for copy in copies
    )


def of_store(model: Model, world: World) -> Iterator[Move]:
    """The store forgets everything. Heartbeats put back what bodies hold."""
    if not world.may("forgets"):
        return
    lost = world.spend("forgets")._replace(store=Store(losses=world.store.losses + 1))
    slots = []
    for slot in world.slots:
        held = world.store.keys_of(slot.token) if slot.phase == "body" else ()
        known = [claim.key for claim in model.plans.delivery(slot).leases if claim.key in held]
        slots.append(slot._replace(is_paused=slot.is_alive, forgotten=tuple(known)))
    lost = lost._replace(slots=tuple(slots))
    sending = [caller.message.id for caller in world.callers if caller.phase != "idle"]
    sending += [slot.next[1].id for slot in world.slots if slot.next]
    for id in sending:
        lost = lost.mark(id, is_excused=True)
    for id, fate in world.fates:
        is_kept = any(copy.message.id == id for copy in world.queue) or any(
            slot.id == id and not (slot.phase in ("ack", "owed") or _has_parked(slot)) for slot in world.slots
        )
        is_lost = world.store.has_parked(id) and not is_kept
        changes = {"is_owed": fate.is_owed and not is_lost, "is_excused": True, "is_closed": False}
        lost = lost.mark(id, **changes)
    yield Move("the store loses all its data", lost, False)


def _has_parked(slot: Slot) -> bool:
    return any(isinstance(answer, Parked) for answer in slot.answers)
