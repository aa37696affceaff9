"""All moves of a world of messages, and what must hold in every world."""

from __future__ import annotations

from collections.abc import Iterator

from celery_exclusive.core.claim import FINISHED, STARTED, task_id
from celery_exclusive.core.operations import Acquire, AcquireAlone, Granted, Held, Operation, Reap
from tests.explorer.messages import callers, faults, joining, slots
from tests.explorer.messages.plans import Plans
from tests.explorer.messages.store import KEYS, LOCK, Key, Store, Stores
from tests.explorer.messages.world import (
    LOST,
    Caller,
    Copy,
    Message,
    Move,
    Setting,
    Slot,
    World,
)
from tests.explorer.model import Violation

_RUNNING = ("body", "keep", "publish", "send", "undo", "over")
"""The phases of a delivery whose body has begun and not ended."""


class Model:
    """The moves of all actors: callers, workers, the reaper, and chance."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.plans = Plans(setting)
        self.stores = Stores()

    def start(self) -> World:
        setting = self.setting
        waiting = []
        for place, letter in enumerate(setting.calls):
            if letter != "'":
                key = "v" if setting.calls[place + 1 : place + 2] == "'" else "u"
                how = "member" if letter.isupper() else "call"
                number = 1 + setting.calls[:place].lower().count(letter.lower())
                message = Message(letter.lower(), number, key, is_awaited=how == "member")
                waiting.append(Caller(how, message))
        return World(Store(), (), (), tuple(waiting), (), setting.budget).settled()

    def moves(self, world: World) -> Iterator[Move]:
        for label, changed, is_progress in self._moves(world):
            yield Move(label, changed.settled(), is_progress)

    def _moves(self, world: World) -> Iterator[Move]:
        yield from callers.moves(self, world)
        yield from self._broker_delivers(world)
        for slot in world.slots:
            yield from slots.moves(self, world, slot)
            yield from faults.of_slot(self, world, slot)
        yield from self._reaper_comes(world)
        yield from faults.of_clock(self, world)
        yield from faults.of_store(self, world)

    def _broker_delivers(self, world: World) -> Iterator[Move]:
        if sum(slot.is_alive for slot in world.slots) >= self.setting.workers:
            return
        for copy in dict.fromkeys(world.queue):
            queue = list(world.queue)
            queue.remove(copy)
            token = max((slot.token for slot in world.slots), default=0) + 1
            slot = Slot(copy._replace(is_hidden=False), token)
            taken = world._replace(queue=tuple(queue), slots=(*world.slots, slot))
            yield Move(f"a worker receives {copy}", taken, not copy.is_hidden)

    def _reaper_comes(self, world: World) -> Iterator[Move]:
        for name in KEYS:
            if world.store.key(name).is_due:
                reaped, _, wakes = self.ask(world, name, Reap())
                if reaped.store != world.store:
                    yield Move(f"the reaper looks after {name}", reaped.send(*wakes))
                    if wakes and world.may("crashes"):
                        label = f"the reaper looks after {name}, and dies before it has published anything"
                        yield Move(label, reaped.spend("crashes"), is_progress=False)

    def returned(self, slot: Slot) -> Copy:
        """The copy that the broker has again of what it has delivered."""
        copy = slot.copy
        return copy._replace(is_redelivered=copy.is_redelivered or self.setting.flags)

    def ask(
        self, world: World, key: str, operation: Operation | None, copy: Copy | None = None
    ) -> tuple[World, object, tuple[Copy, ...]]:
        """Let the store do one step: the world after it, the answer, and the messages to publish."""
        store, answer, wakes = self.stores.ask(world.store, key, operation, copy)
        after = world._replace(store=store)
        goes_over = (isinstance(operation, Acquire) and operation.takes_over) or (
            isinstance(operation, AcquireAlone) and operation.inherits
        )
        if goes_over and key != LOCK and isinstance(answer, Granted):
            after = self._takes_over(after, operation, world.store.key(key))
        return after, answer, wakes

    # The promises.

    def check(self, world: World) -> None:
        """Check what holds in every world: one lease per key, and a body runs only with all of its leases.

        The first lease belongs to the delivery. If that is the lock, the unique key belongs to the message.
        """
        for name, key in zip(KEYS, world.store.keys, strict=True):
            if len(key.leases) > 1:
                raise Violation(f"{name} has two leases")
        for slot in world.slots:
            if slot.phase != "body" or not slot.has_body or slot.is_paused:
                continue
            guard, *others = self.plans.delivery(slot).leases or (None,)
            if guard:
                held = [(lease.id, lease.token, lease.phase) for lease in world.store.key(guard.key).leases]
                if (guard.id, slot.token, "running") not in held:
                    raise Violation(f"{slot.id} runs without its lease on {guard.key}")
            for claim in others:  # the unique key
                if slot.id not in [lease.id for lease in world.store.key(claim.key).leases]:
                    raise Violation(f"{slot.id} runs without its lease on {claim.key}")

    def begins(self, world: World, slot: Slot) -> World:
        """The world in which this body has begun: may it?"""
        world = joining.begins(world, slot)
        fate = world.fate(slot.id)
        if fate.has_begun and not (fate.is_excused or fate.has_handed_over):
            raise Violation(f"{slot.id} runs a second time by our own doing")
        if (fate.is_over and not fate.is_excused) or slot.copy.message.superseded_by:
            raise Violation(f"{slot.id} runs, though it has ended, or is to end, without its body")
        is_known = slot.copy.is_back and self.setting.flags and not (fate.is_overtaken or slot.is_paused)
        if fate.is_closed and is_known:
            raise Violation(f"{slot.id} runs again, though it has finished")
        for other in world.slots:
            if other.hand_over == slot.id and other.phase in _RUNNING and not other.is_paused:
                is_lost = world.fate(other.id).is_excused
                if other.is_handed_over and not is_lost:
                    raise Violation(f"{slot.id} runs beside {other.id}, whose retry it is")
        for id, other_fate in world.fates:
            if task_id(id) != slot.copy.message.task and other_fate.keeps_lock and not other_fate.is_excused:
                raise Violation(f"{slot.id} runs between the attempts of {task_id(id)}")
        world = world.mark(slot.id, keeps_lock=False)
        if former := slot.copy.message.follows:  # this goes on with it
            world = world.mark(former, is_owed=False, is_closed=True)
        return world.mark(slot.id, has_begun=True, was_admitted=True)

    def lost(self, world: World, slot: Slot) -> dict[str, str]:
        """The result of a task that ends without the end of its body, unless it has one."""
        return {"result": world.fate(slot.id).result or LOST} if self.setting.joins else {}

    def ends_wait(self, world: World, slot: Slot) -> World:
        """The world in which a task ends without its body, since its wait is over: may it?"""
        fate = world.fate(slot.id)
        was_admitted = fate.has_begun or slot.copy.message.is_retry
        if was_admitted and not fate.is_overtaken:
            raise Violation(f"{slot.id} has begun before, and ends without its body")
        if fate.is_over and not fate.is_excused:
            raise Violation(f"{slot.id} ends a second time by our own doing")
        return world.mark(slot.id, is_over=True)

    def waits(self, world: World, slot: Slot, name: str) -> None:
        """A message has to wait for this key: does it leave the lock to others meanwhile?"""
        if name != LOCK and slot.token in [lease.token for lease in world.store.key(LOCK).leases]:
            raise Violation(f"{slot.id} waits for {name}, and holds the lock")

    def is_parked(self, slot: Slot, name: str) -> None:
        """A message has joined the line of this key, as it was held: may it wait there?"""
        goes_on = slot.copy.goes_on or slot.copy.message.is_awaited
        by = [owner.id for answer in slot.answers if isinstance(answer, Held) for owner in answer.by]
        is_turned_away = name == LOCK and self.setting.on_conflict == "skip" and not goes_on
        if is_turned_away and slot.id not in by:
            raise Violation(f"{slot.id} waits for {name}, and is to be skipped")

    def is_published(self, world: World, message: Message) -> None:
        """A call has acquired its key, and is to be sent: may it be?"""
        if self.setting.until != FINISHED:
            return
        copies = [*world.queue, *(place.copy for key in world.store.keys for place in key.line)]
        copies += [slot.copy for slot in world.slots if slot.phase in ("admit", "body")]
        known = {copy.message for copy in copies}
        for other in sorted(known):
            fate = world.fate(other.id)
            is_safe = fate.is_owed and not (fate.is_excused or fate.has_no_key or other.duplicate_of)
            if is_safe and other.key == message.key and other.id != message.id:
                raise Violation(f"{message.id} is sent, and {other.id} has not ended")

    def _takes_over(self, world: World, operation: Acquire | AcquireAlone, before: Key) -> World:
        """The world in which a run has taken the key of another task: may it?"""
        asking = [slot.id for slot in world.slots if slot.phase == "admit"]
        for lease in before.leases:
            fate = world.fate(lease.id)
            is_safe = fate.has_waited and not (fate.is_excused or fate.has_no_key)
            is_kept = is_safe and lease.id not in asking
            if is_kept and lease.phase == "queued" and task_id(lease.id) != task_id(operation.id):
                raise Violation(f"{operation.id} takes the key of {lease.id}, which waits in line")
            if lease.id != operation.id:
                world = world.mark(lease.id, has_no_key=True)
        return world

    def is_skipped(self, world: World, message: Message, key: str, copy: Copy | None = None) -> None:
        """A call, or a copy of a message, is skipped at this instant: may it be?"""
        fate = world.fate(message.id)
        is_fresh = copy is not None and not copy.is_back  # it does not know that it was parked before
        has_lost_it = fate.has_no_key and self.setting.budget.lost_replies
        is_first = is_fresh and (fate.is_overtaken or has_lost_it)
        if fate.was_admitted and self.setting.flags and not (is_first or fate.is_given_up):
            raise Violation(f"{message.id} is skipped, though it was admitted before")
        owners = world.store.key(key).owners
        goes_on = copy.goes_on if copy else message.goes_on
        kin = (message.parent, message.task if goes_on else "")
        if not [id for id in owners if id != message.id and task_id(id) not in kin]:
            raise Violation(f"{message.id} is skipped, and no other task has {key}")
        if self.setting.until == STARTED and key != LOCK:
            running = [slot.id for slot in world.slots if slot.phase == "body" and slot.has_body]
            if set(owners) & set(running):
                raise Violation(f"{message.id} is skipped for the sake of a body that has begun")
