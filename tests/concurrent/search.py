"""The search for an order of a key's calls that agrees with real time and in which `step` answers the same.

It is the search of Wing and Gong with Lowe's memory: one of the calls that may come next is done; if that
leads nowhere, another one is tried. No state is entered twice with the same calls done. A call without an
answer may come at any time after its begin, or never.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from celery_exclusive.core.operations import Drop, GiveUp, Granted, Release, Remove, ids_of
from celery_exclusive.stores.base import Reply, Snapshot
from tests.concurrent.calls import Call, Look, Loss, NewEpoch, Tombstone
from tests.concurrent.specification import Specification, State

NEVER = 1 << 62
WITH_TOMBSTONE = (Release, Remove, GiveUp, Drop)
LATELY = 20
"""The calls of an order that may have an instant after that of the last one."""


@dataclass(frozen=True, slots=True)
class Done:
    """A call at its place in an order, the instant of its step, and the state after it."""

    call: Call
    now: int
    after: State


@dataclass(slots=True)
class Found:
    """The best order. If it is not whole, no call that may come `next` gives the answer that it has.

    `is_given_up`: the search took too long, so it has shown nothing. `states`: how many it has seen.
    """

    order: list[Done] = field(default_factory=list)
    next: list[Call] = field(default_factory=list)
    is_whole: bool = False
    is_given_up: bool = False
    states: int = 0


class Search:
    """The search in the calls of one key, from its first state on.

    * `settles`: of a request that was sent twice the first one was done before the answer to the second.
    * `has_early_tombstones`: others may see the tombstone of a call before all else that it changes.
    """

    def __init__(
        self,
        calls: Iterable[Call],
        specification: Specification,
        first: State,
        *,
        has_early_tombstones: bool = False,
        settles: bool = False,
    ) -> None:
        self.calls, self.specification, self.first = list(calls), specification, first
        all_calls = [*self.calls, *_first_requests(self.calls, settles=settles)]
        self._answered = sorted((it for it in all_calls if it.is_answered), key=lambda it: it.begin)
        if has_early_tombstones:
            all_calls += _tombstones(self._answered)
        self._open = [it for it in all_calls if not (it.is_answered or isinstance(it.operation, Look))]
        self._fences = _fences(self.calls)
        self._epochs = list(dict.fromkeys(_epochs(self.calls)))
        self._most_lost = NEVER

    def run(self, seconds: float) -> Found:
        """Search for so many seconds of this process.

        What a lagging replica did not have are mostly the last few calls.
        """
        limit, states, found = time.process_time() + seconds, 0, Found()
        has_replica = any(it.is_loss and not it.operation.is_total for it in self._answered)
        for self._most_lost in (3, 30, NEVER) if has_replica else (NEVER,):
            found = self._run(limit)
            states += found.states
            if found.is_whole or found.is_given_up:
                break
        return replace(found, states=states)

    def _run(self, limit: float) -> Found:
        found = Found()
        everything = (1 << len(self._answered)) - 1
        seen = {(0, 0, self.first.normal)}
        path: list[Done] = []
        done = [(0, 0)]
        stack = [self._steps(0, 0, self.first, path)]
        while stack and not found.is_given_up:
            if done[-1][0] == everything:
                found.order, found.is_whole = path, True
                break
            step = next(stack[-1], None)
            if step is None:
                if len(path) > len(found.order) or not found.next:
                    found.order, found.next = [*path], [it for _, it in self._candidates(*done[-1])]
                stack.pop()
                done.pop()
                del path[len(done) - 1 if done else 0 :]
                found.is_given_up = time.process_time() > limit
                continue
            answered, open_, it = step
            name = (answered, open_, it.after.normal)
            if name not in seen:
                seen.add(name)
                path.append(it)
                done.append((answered, open_))
                stack.append(self._steps(answered, open_, it.after, path))
        found.states = len(seen)
        return found

    def _steps(
        self, answered: int, open_: int, state: State, path: list[Done]
    ) -> Iterator[tuple[int, int, Done]]:
        """Yield the next steps: of calls with an answer first, of others only where they change the state."""
        latest = max((it.now for it in path[-LATELY:]), default=0)
        for bit, call in self._candidates(answered, open_):
            for now, after in self._outcomes(state, call, latest, path):
                if call.is_answered:
                    yield answered | bit, open_, Done(call, now, after)
                elif after.normal != state.normal:
                    yield answered, open_ | bit, Done(call, now, after)

    def _candidates(self, answered: int, open_: int) -> list[tuple[int, Call]]:
        """Return the calls that may come next: they began before any other call that is left had ended."""
        place = (~answered & (answered + 1)).bit_length() - 1
        first_end, found = NEVER, []
        while place < len(self._answered) and (call := self._answered[place]).begin <= first_end:
            if not answered >> place & 1:
                found.append((1 << place, call))
                first_end = min(first_end, call.end or NEVER)
            place += 1
        found.sort(key=lambda it: it[1].end or NEVER)
        last_begin = self._answered[answered.bit_length() - 1].begin if answered else 0
        for place, call in enumerate(self._open):
            is_in_time = call.begin <= first_end and (call.last is None or call.last >= last_begin)
            if is_in_time and not open_ >> place & 1:
                found.append((1 << place, call))
        return found

    def _outcomes(
        self, state: State, call: Call, latest: int, path: list[Done]
    ) -> Iterator[tuple[int, State]]:
        if isinstance(call.operation, Loss):
            states = self._after_loss(call.operation, state, path)
            yield from ((call.since, after) for after in states)
        elif isinstance(call.operation, NewEpoch):
            yield from ((call.since, state.of_epoch(epoch)) for epoch in self._epochs)
        else:
            for now in self._instants(call, latest):
                for after in self.specification.outcomes(state, call, now, latest):
                    yield now, after

    def _instants(self, call: Call, latest: int) -> Sequence[int]:
        """Return the instants at which the step may have been done.

        If they are not known, fences of its id tell the instant of a grant, and nothing else depends on it.
        """
        if call.nows:
            return call.nows[-1:] if call.is_answered else call.nows
        until = call.until if call.is_answered else NEVER
        fences = self._fences.get(call.operation.id, ())
        return [max(call.since, latest + 2), *(it for it in fences if call.since <= it <= until)]

    def _after_loss(self, loss: Loss, state: State, path: list[Done]) -> Iterator[State]:
        """Yield what the server may have now: nothing, or an earlier state. Fences go on, or begin anew."""
        before = [self.first] if loss.is_total else [state, *(it.after for it in reversed(path)), self.first]
        before = before[: self._most_lost + 1]
        for earlier in {it.normal: it for it in before}.values():
            for fence in dict.fromkeys((state.fence, 0 if loss.is_total else earlier.fence)):
                kept = earlier.of_fence(fence)
                if not loss.is_total:
                    yield kept
                    continue
                yield from (kept.of_epoch(epoch) for epoch in self._epochs if epoch != state.epoch)
                yield kept.of_epoch("not told")


def _first_requests(calls: Iterable[Call], *, settles: bool) -> Iterator[Call]:
    """Yield the first request of each call that may have been sent twice."""
    for call in calls:
        if call.has_connected and call.is_answered:
            last = call.end if settles else None
            yield replace(call, end=None, last=last, reply="", has_connected=False)


def _tombstones(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield what other calls may see of a call before it is done."""
    for call in calls:
        if isinstance(call.operation, WITH_TOMBSTONE):
            yield replace(call, operation=Tombstone(call.operation), end=None, last=call.end)


def _fences(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Return the fences of each id that any answer names. An id that takes a lease over takes its fence."""
    found = defaultdict[str, set[int]](set)
    for call in calls:
        answer = call.reply.answer if isinstance(call.reply, Reply) else call.reply
        if isinstance(answer, Granted):
            found[call.operation.id].add(answer.fence)
        owners = answer.holders if isinstance(answer, Snapshot) else getattr(answer, "by", ())
        for owner in owners:
            found[owner.id].add(owner.fence)
    heirs = [ids for call in calls if len(ids := ids_of(call.operation)) > 1]
    for one, other in (*heirs, *reversed(heirs)):
        found[one] = found[other] = found[one] | found[other]
    return {id: sorted(fences - {0}) for id, fences in found.items()}


def _epochs(calls: Iterable[Call]) -> Iterator[str]:
    """Yield the epochs that any answer tells."""
    for call in calls:
        if isinstance(call.reply, Reply) and call.reply.epoch:
            yield call.reply.epoch
