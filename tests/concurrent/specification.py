"""What a store has to answer: the state of a key, and each operation on it, done by the real `step`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any

from celery_exclusive.core.operations import Acquire, AcquireAlone, Held, Reap, Renew, Requeue, Restore
from celery_exclusive.core.records import NEVER, SECOND, by_expiry
from celery_exclusive.stores.base import Reply, Snapshot, as_repeated
from celery_exclusive.stores.memory import MemoryStore, _Key
from tests.concurrent.calls import Asked, Call, Look, Tombstone

HOUR = 3600 * SECOND
TICK = SECOND // 10
"""To which the time of the next sweep is rounded, if that is soon."""
GRACE = 2 * SECOND
"""What memcached adds to each ttl."""
_numbers = count()


class State:
    """The data of one key. No step changes them: it makes new ones."""

    __slots__ = ("epoch", "fence", "kept", "normal", "start")

    def __init__(self, kept: _Key, fence: int, epoch: str, start: int | None = None) -> None:
        """`start`: times are rounded to hours from then on. `normal` names the state so.

        An answer names those of many holders that end first, and a sweep comes back within seconds to a dead
        run that it may not recover yet: so the order of ends, and when the key is due, belong to the name.
        """
        self.kept, self.fence, self.epoch, self.start = kept, fence, epoch, start
        holders, entries = kept.holders.values(), sorted(kept.entries.values(), key=lambda entry: entry.seq)
        due = kept.due if entries else None
        leases: list[object] = [*holders]
        places: list[object] = [*entries]
        stones: list[object] = [*kept.tombstones.items()]
        ends: list[str] = []
        if start is not None:
            fence = 0
            due = due and (_hours(due, start), min(due - start, HOUR // 2) // TICK)
            leases = [replace(it, expiry=_hours(it.expiry, start)) for it in holders]
            places = [
                replace(
                    it, seq=0, offer_until=_hours(it.offer_until, start), deadline=_hours(it.deadline, start)
                )
                for it in entries
            ]
            stones = [(id, token) for id, (_, token) in kept.tombstones.items()]
            ends = [it.id for it in by_expiry(holders)]
        limit = kept.limit if leases or places else 1
        self.normal = (
            limit,
            kept.queue,
            due,
            fence,
            epoch,
            frozenset(leases),
            tuple(ends),
            tuple(places),
            frozenset(kept.messages.items()),
            frozenset(stones),
        )

    def __str__(self) -> str:
        kept = self.kept
        entries = sorted(kept.entries.values(), key=lambda entry: entry.seq)
        parts = [*kept.holders.values()], entries, kept.messages, kept.tombstones
        return f"limit {kept.limit}, fence {self.fence}, {', '.join(map(str, parts))}"

    def of_epoch(self, epoch: str) -> State:
        return State(self.kept, self.fence, epoch, self.start)

    def of_fence(self, fence: int) -> State:
        return State(self.kept, fence, self.epoch, self.start)


def _hours(time: int, start: int) -> int:
    return time if time in (0, NEVER) else (time - start + HOUR // 2) // HOUR


class Specification:
    """Does operations on states.

    * `offer`, `tombstone_ttl`: as the tested store has them.
    * `has_line`: it parks messages. Without it the store adds a grace to each `ttl`, as memcached does.
    * `start`: the store's own clock decides, so an instant is only known to lie within the call. Times are in
      whole hours, or over at once, and the search compares them so. None: each instant is known.
    * `repeats_alone`: a repeated AcquireAlone says so, as on Redis.
    """

    def __init__(
        self,
        *,
        offer: int,
        tombstone_ttl: int,
        has_line: bool = True,
        start: int | None = None,
        repeats_alone: bool = False,
    ) -> None:
        url = f"memory://specification {next(_numbers)}"
        self._store = MemoryStore(url, offer=offer, tombstone_ttl=tombstone_ttl)
        self._has_line, self.start, self._repeats_alone = has_line, start, repeats_alone

    def first(self, epoch: str, fence: int = 0) -> State:
        """The state of a key that was never used."""
        return State(_Key(), fence, epoch, self.start)

    def outcomes(self, state: State, call: Call, now: int, latest: int) -> Iterator[State]:
        """Yield the states after a call, done at the instant `now`, that gave the answer it has.

        `latest`: until then a store may have dropped leases that are over.
        """
        operation = call.operation
        if isinstance(call.reply, Reply) and call.reply.epoch not in ("", state.epoch):
            return
        if isinstance(operation, Tombstone):
            _, after = self.do(state, operation.of, now)
            kept = copy(state.kept)
            kept.tombstones = after.kept.tombstones
            yield State(kept, state.fence, state.epoch, self.start)
            return
        for before in self._kept_or_dropped(state, max(latest, call.until)):
            reply, after = self.do(before, operation, now)
            if not call.is_answered or self._is_same(reply, call):
                yield after
            if self._may_skip(before, call, now):
                yield before
            if call.has_connected:
                again = self._again(operation)
                reply, after = self.do(before, again, now)
                is_reply = isinstance(reply, Reply)
                if not call.is_answered or (is_reply and self._is_same(as_repeated(reply, again), call)):
                    yield after

    def do(self, state: State, operation: Asked, now: int) -> tuple[Reply | Snapshot, State]:
        memory = self._store._memory
        kept = copy(state.kept)
        for name in ("holders", "ends", "entries", "waiting", "messages", "tombstones"):
            setattr(kept, name, copy(getattr(kept, name)))
        memory.keys = {"": kept}
        memory.fence, memory.epoch = state.fence, state.epoch
        self._store.clock = lambda: now
        if isinstance(operation, Look):
            return self._without_grace(self._store.inspect("")), state
        reply: Reply = self._store.apply("", self._with_grace(operation))
        found = memory.keys.get("") or _Key()
        if isinstance(operation, Renew) and found.due and state.kept.due:
            found.due = max(found.due, state.kept.due)  # a store may leave it as it is
        after = State(found, memory.fence, state.epoch, self.start)
        return replace(reply, answer=self._without_grace(reply.answer)), after

    def _may_skip(self, state: State, call: Call, now: int) -> bool:
        """Whether a sweep may have left a key as it is: it was not due, or another call had locked it."""
        if not (isinstance(call.operation, Reap) and isinstance(call.reply, Reply)) or call.reply.wake:
            return False
        due = state.kept.due if state.kept.entries else None
        return call.may_skip or due is None or due > now

    def _kept_or_dropped(self, state: State, latest: int) -> Iterator[State]:
        """A store may drop the leases of a key without a line when they are over, or when it is asked."""
        yield state
        kept = state.kept
        if kept.holders and not kept.entries and all(it.expiry <= latest for it in kept.holders.values()):
            free = copy(kept)
            free.limit, free.holders, free.ends = 1, {}, []
            yield State(free, state.fence, state.epoch, self.start)

    def _again(self, operation: Any) -> Any:
        if isinstance(operation, Acquire):
            return replace(operation, redelivered=True)
        if isinstance(operation, AcquireAlone) and self._repeats_alone:
            return replace(operation, repeated=True)
        return operation

    def _is_same(self, reply: Reply | Snapshot, call: Call) -> bool:
        found = call.reply
        if isinstance(reply, Snapshot) or isinstance(found, (Snapshot, str)):
            return self._plain(reply) == self._plain(found)
        return (
            self._plain(reply.answer) == self._plain(found.answer)
            and self._in_order(replace(it, key="") for it in reply.wake)
            == self._in_order(replace(it, key="") for it in found.wake)
            and self._in_order(id for _, id in reply.aside) == self._in_order(id for _, id in found.aside)
        )

    def _in_order(self, found: Iterable[Any]) -> list[Any]:
        """Messages are woken in the order of their times, which is known if their instants are."""
        return list(found) if self.start is None else sorted(found, key=str)

    def _plain(self, answer: Any) -> Any:
        """An answer as far as it is known: without ages, and with times in hours, if no instant is known."""
        if self.start is None:
            return answer
        if isinstance(answer, Snapshot):
            line = tuple(
                replace(it, age=0, not_before=_rounded(it.not_before), ends_in=_rounded(it.ends_in))
                for it in answer.line
            )
            return replace(answer, holders=self._plain_owners(answer.holders), line=line)
        return replace(answer, by=self._plain_owners(answer.by)) if hasattr(answer, "by") else answer

    def _plain_owners(self, owners: Any) -> Any:
        return tuple(replace(it, age=0, remaining=_rounded(it.remaining)) for it in owners)

    def _with_grace(self, operation: Any) -> Any:
        if self._has_line:
            return operation
        if isinstance(operation, Acquire):
            operation = replace(operation, message=None)
        if isinstance(operation, (Acquire, AcquireAlone, Renew, Requeue, Restore)):
            return replace(operation, ttl=operation.ttl + GRACE)
        return operation

    def _without_grace(self, answer: Any) -> Any:
        if self._has_line:
            return answer
        name = {Held: "by", Snapshot: "holders"}.get(type(answer))
        if name is None:
            return answer
        owners = (replace(it, remaining=max(it.remaining - GRACE, 1)) for it in getattr(answer, name))
        return replace(answer, **{name: tuple(owners)})


def _rounded(time: int | None) -> int | None:
    return time and (time + HOUR // 2) // HOUR
