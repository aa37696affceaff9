"""A small world around the real `step`: broker, workers, store, reaper, and everything that may go wrong.

Not modelled, on purpose:
* lengths of time. The model knows of the clock only whether a lease or an offer has expired, so everything
  that may happen in some order of clocks does happen here. A property test of `step` shows that `due` comes
  in time.
* prefetch (a prefetched message that returns is one taken by a worker that dies at once), the order of
  a queue (any message may be the next), heartbeats (the lease of a living holder expires in a `pause` or in
  an `outage` only).
* data loss of the store, changing limits, `remove`, and conflicts that do not park: they keep nothing.
* unfinished endings with early acknowledgement: Celery itself loses those.
* without flags: what a copy may do that looks like a new message. With early acknowledgement: what becomes of
  the copy of a second offer that the broker delivers again.
* more than one reaper at once, more faults than the setting allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from celery_exclusive.core.key_state import OFFERS_ASIDE, OFFERS_IN_LINE, waiting
from celery_exclusive.core.operations import (
    Acquire,
    Applied,
    Enqueue,
    Granted,
    Operation,
    Over,
    Parked,
    Reap,
    Recall,
    Release,
    Renew,
    ids_of,
)
from celery_exclusive.core.records import (
    BEGUN,
    NAMED,
    NEVER,
    OVER,
    Document,
    Entry,
    Holder,
    Line,
    State,
    overdue,
)
from celery_exclusive.core.step import Transition, step
from celery_exclusive.stores.base import Snapshot

NOW, LATER, LAST_FENCE, EPOCH = 0, 1, 100, "epoch"
FRESH, PROMOTED, REDELIVERED = "fresh", "promoted", "redelivered"
RETURNED = "promoted and redelivered"
HIDDEN = "hidden"
"""A copy that the broker hides until its visibility timeout is over: for too long to wait for it."""
RUNNING, RETRIED, PARKING, ENDING, REQUEUEING = "running", "retried", "parking", "ending", "requeueing"
TOLD = "told"
"""The phase of a body that stops since it was told of a newer call, or is interrupted for it."""
MOST_DEATHS = 2
"""How many of its runs may die before a task is given up."""
REJECTED = "'"
"""Ends the name of a message that was rejected, and returns through a dead-letter exchange."""


class Violation(Exception):
    """A promise does not hold."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """The steps of this library. The negative controls change one of them each."""

    step: Callable[[Document, Line, Operation, int], Transition] = step
    reaps: bool = True
    parks_in_two_steps: bool = False
    knows_unfinished: bool = True
    retries_have_ids: bool = True
    lives_have_ids: bool = True
    knows_promoted: bool = True
    repeats_as_redelivered: bool = True
    keeps_messages: bool = True
    sweeps_wait: bool = True
    keeps_places: bool = True
    knows_queues: bool = True
    looks_again: bool = True
    retries_are_superseded: bool = True
    newer_than: Callable[[Snapshot, str], str | None] = Snapshot.newer_than

    def id_of(self, message: str) -> str:
        if message.endswith(REJECTED):
            return message if self.lives_have_ids else message.removesuffix(REJECTED)
        return message if self.retries_have_ids else message[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """How large the world is, and how often each thing may go wrong in it.

    `flags`: the broker says of a message that it delivers it again. `slow`: an offer runs out although its
    copy is still underway. `pauses`: a lease lapses although its holder lives. `rejections`: a body rejects
    its message, which returns through a dead-letter exchange. `lost_replies`: the store has answered, but
    the worker never hears it and asks again. `recovers`: the broker hides the message of a run that died, and
    the store keeps it. `outages`: the store is away for so long that all leases lapse. `ordered`: tasks take
    their places in line when they are published, and start in this order. `kills`: the body of the first task
    kills its worker each time, so often at most. `hangs`: it never ends, and all other messages expire.
    `crowded`: a step reads as little of the holders as of a key with many. `gives_up`: messages that wait in
    line give up. `replaces`: a newer message replaces the one that waits. `queues`: with 2, the first task is
    in another queue than the others. `asleep`: no worker ever comes to that queue. `dear`: the first task
    costs two units, the others one. `supersedes`: as `replaces`, and a running body may stop for a newer one.
    `revocations`: a message that waits in line is revoked.
    """

    name: str = field(compare=False)
    tasks: int = 2
    workers: int = 2
    limit: int = 1
    early: bool = False
    flags: bool = True
    recovers: bool = False
    crashes: int = 0
    lost_acks: int = 0
    unfinished: int = 0
    slow: int = 0
    pauses: int = 0
    retries: int = 0
    rejections: int = 0
    lost_replies: int = 0
    outages: int = 0
    ordered: bool = False
    kills: int = 0
    hangs: bool = False
    crowded: bool = False
    gives_up: bool = False
    replaces: bool = False
    queues: int = 1
    asleep: bool = False
    dear: bool = False
    supersedes: bool = False
    revocations: int = 0
    offers_in_line: int = OFFERS_IN_LINE
    offers_aside: int = OFFERS_ASIDE

    @property
    def offers_matter(self) -> int:
        """The number up to which offers are counted. 0: no world has so many that they matter."""
        if self.queues > 1 or self.supersedes:  # it matters whether there was one
            return 2
        return 0 if self.offers_in_line == OFFERS_IN_LINE else self.offers_in_line + self.offers_aside


class Lease(NamedTuple):
    id: str
    waited: bool = False
    lapsed: bool = False
    cost: int = 1


class Place(NamedTuple):
    """One entry of the line with its message. `offered` until: nothing, some time, or for ever.

    `deadline`: it has expired and is to be recalled, it may expire, or never does. The other fields are those
    of an `Entry`.
    """

    id: str
    message: str
    offered: int = NOW
    offers: int = 0
    state: State = "waiting"
    deaths: int = 0
    deadline: int = NEVER
    gives_up: bool = False
    replaceable: bool = False
    over: str | None = None
    cost: int = 1


class Store(NamedTuple):
    """The data of the store, in order of fence and of seq; the numbers themselves do not matter."""

    holders: tuple[Lease, ...] = ()
    line: tuple[Place, ...] = ()
    tombstones: tuple[tuple[str, str], ...] = ()
    due: bool = False
    queue: str = ""


class Slot(NamedTuple):
    """One delivery on a worker; its token is told by `owns`, whether the lease of its id is its own.

    `kind` is what its message says of itself, `phase` the kind of the delivery until it is answered, `again`
    that it asks once more. `unacked`:
    the broker has no ack of it; with early acks this only says that the ack may still turn out to be lost.
    `wakes` are the messages it must publish before anything else. `given_up`: it ends without its body,
    which has killed too many workers.
    """

    message: str
    kind: str
    phase: str
    unacked: bool = True
    owns: bool = False
    paused: bool = False
    again: bool = False
    wakes: tuple[str, ...] = ()
    given_up: bool = False


class Fate(NamedTuple):
    """The fate of one published message, which no part of the system knows as a whole.

    `owed`: it must still run to its end. `entered`: its body was. `excused`: something happened after which
    plain Celery may run it again. `waited`: it was parked, or ran as redelivered. `closed`: it has waited and
    has finished with its lease in its hand, so nothing may make it run again. `overtaken`: its first delivery
    lost its connection before it had asked, so its own redelivery may come first and finish; the store cannot
    tell the first one from a new message then, and plain Celery runs both. `expired`: a worker ends it
    without its body. `skipped`: a worker has ended it without its body, since its wait was over.
    `superseded`: the retry of a run that a newer one has superseded.
    """

    owed: bool = True
    entered: bool = False
    excused: bool = False
    waited: bool = False
    closed: bool = False
    overtaken: bool = False
    expired: bool = False
    skipped: bool = False
    superseded: bool = False


CLOSED = Fate(owed=False, entered=True, excused=True, waited=True, closed=True)


class Budget(NamedTuple):
    crashes: int
    lost_acks: int
    unfinished: int
    slow: int
    pauses: int
    retries: int
    rejections: int
    lost_replies: int
    outages: int
    kills: int
    revocations: int


class World(NamedTuple):
    """`unsent` are the messages that are not published yet, in their order."""

    store: Store
    queue: tuple[tuple[str, str], ...]
    slots: tuple[Slot, ...]
    reaper: tuple[str, ...]
    fates: tuple[tuple[str, Fate], ...]
    budget: Budget
    unsent: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return not self.owed

    @property
    def owed(self) -> list[str]:
        return [message for message, fate in self.fates if fate.owed]

    @property
    def unfinished(self) -> str:
        """Return the report about a world from which no way without a fault leads to the end."""
        return f"{' and '.join(self.owed)} cannot all finish any more"

    def __str__(self) -> str:
        store = self.store
        parts = {
            "leases": [f"{lease.id} lapsed" if lease.lapsed else lease.id for lease in store.holders],
            "in line": [f"{p.id}{' offered' * (p.offered > NOW)} {p.state}" for p in store.line],
            "tombstones": [" ".join(mark) for mark in store.tombstones],
            "queue": [" ".join(copy) for copy in self.queue],
            "workers": [f"{slot.message} {slot.phase}" for slot in self.slots],
            "owed": self.owed,
        }
        return ", ".join(f"{name}: {' + '.join(values) or '-'}" for name, values in parts.items())


class Move(NamedTuple):
    """One thing that may happen next. What depends on a fault or on bad luck is no way to get on."""

    label: str
    world: World
    is_progress: bool = True


class Model:
    """All moves of a world. Each method is one actor."""

    def __init__(self, setting: Setting, protocol: Protocol) -> None:
        self.setting = setting
        self.protocol = protocol
        self._answers: dict[tuple[Store, Operation, bool], tuple[Store, object, tuple[str, ...]]] = {}

    def start(self) -> World:
        messages = "abcdef"[: self.setting.tasks]
        budget = Budget(*(getattr(self.setting, name) for name in Budget._fields))
        never_ends = self.setting.hangs or self.setting.asleep
        fates = tuple((it, Fate(owed=not (never_ends and it == "a"))) for it in messages)
        if self.setting.ordered:
            return World(Store(), (), (), (), fates, budget, tuple(messages))
        return World(Store(), tuple((message, FRESH) for message in messages), (), (), fates, budget)

    def moves(self, world: World) -> Iterator[Move]:
        for label, changed, is_progress in self._moves(world):
            seen = changed
            if self.setting.asleep:  # nobody sees what is in the queue of the first task
                seen = _world(changed, queue=[copy for copy in changed.queue if copy[0] != "a"])
            yield Move(label, self._forget(seen), is_progress)

    def _moves(self, world: World) -> Iterator[Move]:
        yield from self._publisher_goes_on(world)
        yield from self._broker_delivers(world)
        for slot in dict.fromkeys(world.slots):
            others = list(world.slots)
            others.remove(slot)
            yield from self._worker_goes_on(world, slot, others)
            yield from self._worker_fails(world, slot, others)
        yield from self._clock_runs(world)
        yield from self._reaper_comes(world)

    def check(self, world: World) -> None:
        """Check what holds in every single world."""
        unexpired = {lease.id for lease in world.store.holders if not lease.lapsed}
        if sum(lease.cost for lease in world.store.holders if not lease.lapsed) > self.setting.limit:
            raise Violation(f"more than {self.setting.limit} unexpired holders")
        held = {lease.id for lease in world.store.holders} if self.setting.outages else unexpired
        running = [slot for slot in world.slots if slot.phase in (RUNNING, TOLD) and not slot.paused]
        for slot in running:
            if not (slot.owns and self._id(slot) in held):
                raise Violation(f"{slot.message} runs without a lease, and nobody had let it lapse")
        if sum(self._cost(slot.message) for slot in running) > self.setting.limit:
            raise Violation(f"more than {self.setting.limit} bodies")
        in_line = [place for place in world.store.line if place.state == "waiting"]
        behind = in_line[max(self.setting.limit - len(world.store.holders), 0) :]
        fates = dict(world.fates)
        waiting = [place for place in behind if place.replaceable and place.offered == NOW]
        waiting = [place for place in waiting if not fates[place.message].expired]
        if len(waiting) > 1:
            raise Violation(f"{waiting[0].id} and {waiting[1].id} both wait to be replaced")

    # The actors.

    def _publisher_goes_on(self, world: World) -> Iterator[Move]:
        if not world.unsent:
            return
        message, *later = world.unsent
        expires_in, terms = self._expires_in(message), self._terms(message)
        operation = Enqueue(
            message,
            message.encode(),
            self.setting.limit,
            expires_in,
            queue=self._queue(message),
            cost=self._cost(message),
            **terms,
        )
        store, answer, wakes = self._ask(world.store, operation, mine=False)
        copies = [(woken, PROMOTED) for woken in wakes]
        enqueued = _world(world, store=store, queue=[*world.queue, *copies])._replace(unsent=tuple(later))
        if not isinstance(answer, Parked):
            sent = _world(enqueued, queue=[*enqueued.queue, (message, PROMOTED)])
            yield Move(f"{message} is published, and sent", sent)
            if world.budget.crashes:
                label = f"the publisher of {message} crashes before it has sent it"
                yield Move(label, _spend(enqueued, "crashes"), is_progress=False)
        else:
            yield Move(f"{message} is published into the line", _mark(enqueued, message, waited=True))
        if world.budget.lost_replies:
            lost = _spend(_world(enqueued), "lost_replies")._replace(unsent=world.unsent)
            yield Move(f"{message} is published; the reply is lost", lost, is_progress=False)

    def _broker_delivers(self, world: World) -> Iterator[Move]:
        if len(world.slots) == self.setting.workers:
            return
        untouched = [message for message, kind in world.queue if kind == FRESH and len(message) == 1]
        for copy in dict.fromkeys(world.queue):
            message, kind = copy
            is_alike = self.setting.queues == 1 and kind == FRESH
            if is_alike and message in untouched[1:]:
                continue  # tasks are alike until they are taken: without loss of generality in this order
            queue = list(world.queue)
            queue.remove(copy)
            seen = REDELIVERED if kind in (HIDDEN, RETURNED) else kind
            slot = Slot(message, kind if kind == RETURNED else seen, seen)
            label = f"a worker takes {message} ({kind})"
            yield Move(label, _world(world, queue=queue, slots=[*world.slots, slot]), kind != HIDDEN)

    def _worker_goes_on(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        if slot.wakes:
            changed = slot._replace(wakes=slot.wakes[1:])
            queue = [*world.queue, (slot.wakes[0], PROMOTED)]
            label = f"the worker of {slot.message} publishes {slot.wakes[0]} again"
            yield Move(label, _world(world, queue=queue, slots=[*others, changed]))
        elif slot.phase in (FRESH, PROMOTED, REDELIVERED):
            yield from self._acquires(world, slot, others)
        elif slot.phase == PARKING:
            place = Place(self._id(slot), slot.message)
            store = world.store._replace(line=(*world.store.line, place))
            slots = [*others, slot._replace(phase=ENDING)]
            parked = _world(world, store=store, slots=slots)
            yield Move(f"{slot.message} is put into the line", _mark(parked, slot.message, waited=True))
        elif slot.phase == RUNNING:
            yield from self._body_ends(world, slot, others)
        elif slot.phase == RETRIED:
            yield from self._releases(world, slot, others)
        elif slot.phase == TOLD:
            yield from self._stops(world, slot, others)
        elif slot.phase == ENDING:
            yield Move(f"the worker of {slot.message} acknowledges and is free", _world(world, slots=others))
        else:
            returned = [self._returned(slot)] if slot.unacked else []
            label = f"the worker of {slot.message} gives its message back"
            yield Move(label, _world(world, slots=others, queue=[*world.queue, *returned]))

    def _acquires(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        fate = dict(world.fates)[slot.message]
        if fate.superseded and self.protocol.retries_are_superseded:  # it asks for nothing
            ended = _world(world, slots=[*others, slot._replace(phase=ENDING)])
            yield Move(f"{slot.message} is skipped", _mark(ended, slot.message, owed=False))
            return
        if fate.expired:
            yield from self._revokes(world, slot, others)
            return
        places = [place for place in world.store.line if place.id == self._id(slot)]
        given_up = self.setting.kills and any(place.deaths >= MOST_DEATHS for place in places)
        store, answer, wakes = self._ask(world.store, self._acquire(slot), mine=slot.owns)
        asked = _world(world, store=store)
        label = f"{slot.message} ({slot.phase}) asks: {type(answer).__name__}"
        if isinstance(answer, Granted):
            others = [o._replace(owns=o.owns and self._id(o) != self._id(slot)) for o in others]
            running = slot._replace(phase=RUNNING, owns=True, again=False, wakes=wakes, given_up=given_up)
            yield Move(label, self._enter(_world(asked, slots=[*others, running]), slot))
        elif isinstance(answer, Over):
            ended = slot._replace(phase=ENDING, again=False, wakes=wakes)
            yield Move(label, self._end_without_body(_world(asked, slots=[*others, ended]), slot.message))
        elif self.protocol.parks_in_two_steps and not isinstance(answer, Parked):
            yield Move(label, _world(asked, slots=[*others, slot._replace(phase=PARKING, wakes=wakes)]))
        else:
            ended = _world(
                asked, slots=[*others, slot._replace(phase=ENDING, owns=False, again=False, wakes=wakes)]
            )
            yield Move(
                label, _mark(ended, slot.message, waited=True) if isinstance(answer, Parked) else ended
            )
        if world.budget.lost_replies and not self.protocol.parks_in_two_steps:
            phase = REDELIVERED if self.protocol.repeats_as_redelivered else slot.phase
            again = slot._replace(phase=phase, again=True)
            lost = _world(_spend(world, "lost_replies"), slots=[*others, again])
            yield Move(f"{slot.message} ({slot.phase}) asks: the request is lost", lost, is_progress=False)
            again = again._replace(owns=isinstance(answer, Granted))
            lost = _world(lost, store=store, slots=[*others, again])
            if isinstance(answer, Parked):
                lost = _mark(lost, slot.message, waited=True)
            yield Move(f"{label}; the reply is lost", lost, is_progress=False)

    def _revokes(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        """Celery ends what has expired before anything is asked."""
        store, _, wakes = self._ask(world.store, Release(self._id(slot), "mine"), mine=slot.owns)
        ended = _world(world, store=store, slots=[*others, slot._replace(phase=ENDING, wakes=wakes)])
        yield Move(f"{slot.message} has expired, and ends", _mark(ended, slot.message, owed=False))

    def _body_ends(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        if slot.message == "a" and self.setting.hangs:
            return
        if slot.message == "a" and self.setting.kills and not slot.given_up:
            copy = ("a", HIDDEN) if self.setting.recovers else self._returned(slot)
            if world.budget.kills:
                killed = _world(_spend(world, "kills"), slots=others, queue=[*world.queue, copy])
                yield Move("the body of a kills its worker", _mark(killed, "a", excused=True))
            return
        yield from self._releases(world, slot, others)
        if self.setting.supersedes and (newer := self._newer(world, slot)):
            told = _world(world, slots=[*others, slot._replace(phase=TOLD)])
            yield Move(f"{slot.message} is told of {newer}", told, is_progress=False)
        if world.budget.unfinished:
            cut = _mark(_spend(world, "unfinished"), slot.message, excused=True)
            done = not self.protocol.knows_unfinished
            store, answer, wakes = self._ask(
                world.store, Release(self._id(slot), "mine", "done" if done else "open"), mine=slot.owns
            )
            cut_short = slot._replace(phase=REQUEUEING, owns=False, paused=False, wakes=wakes)
            label = f"{slot.message} ends unfinished{_asked(answer)}"
            yield Move(label, _world(cut, store=store, slots=[*others, cut_short]), is_progress=False)
        if world.budget.rejections and slot.unacked and not self.setting.early and len(slot.message) == 1:
            yield from self._rejects(world, slot, others)
        yield from self._retries(world, slot, others)

    def _retries(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        if world.budget.retries and len(slot.message) == 1:
            retry = slot.message + "2"
            is_superseded = bool(self.setting.supersedes and self._newer(world, slot))
            fates = sorted([*world.fates, (retry, Fate(superseded=is_superseded))])
            slots = [*others, slot._replace(phase=RETRIED)]
            queue = [*world.queue, (retry, FRESH)]
            tried = _world(_spend(world, "retries"), slots=slots, queue=queue, fates=fates)
            yield Move(f"{slot.message} publishes its retry {retry}", tried, is_progress=False)

    def _stops(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        """A body that was told ends; if the newer call is still there, as skipped: `Run.is_superseded_by`."""
        newer = self._newer(world, slot) if self.protocol.looks_again else "another"
        if newer and not self._newer_calls(world, slot):
            raise Violation(f"{slot.message} is skipped, and no newer call waits")
        for label, ended, is_progress in self._releases(world, slot, others):
            yield Move(f"{'skipped' if newer else 'failed'}: {label}", ended, is_progress)
        yield from self._retries(world, slot, others)

    def _newer(self, world: World, slot: Slot) -> str | None:
        """The newer call that a run is told of: `Snapshot.newer_than`."""
        _, line = _load(world.store, self._id(slot), self.setting.limit, mine=False)
        seen = [waiting(replace(it, id=f"{it.id[0]}/{it.id[1:]}"), NOW) for it in line.head[:NAMED]]
        newer = self.protocol.newer_than(Snapshot(line=tuple(seen)), f"{slot.message[0]}/{slot.message[1:]}")
        calls = self._newer_calls(world, slot)
        if newer and newer not in calls:
            raise Violation(f"{slot.message} is told of {newer}, which is no newer call")
        may_be_passed = self.setting.queues > 1  # and what was passed is not told of
        if not (newer or may_be_passed) and any(not place.offers for place in calls.values()):
            raise Violation(f"{slot.message} is not told of a newer call")
        return newer

    def _newer_calls(self, world: World, slot: Slot) -> dict[str, Place]:
        """The calls that have been made after this one, and wait in line for their first run."""
        fates, calls = dict(world.fates), [it for it in world.store.line if len(it.message) == 1]
        waiting = [it for it in calls if it.state == "waiting" and not fates[it.message].entered]
        return {it.message: it for it in waiting if it.message > slot.message[0]}

    def _rejects(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        """The body gives its message up, and the broker's queues bring it back: it is to run once more."""
        life = slot.message + REJECTED
        store, answer, wakes = self._ask(world.store, Release(self._id(slot), "mine"), mine=slot.owns)
        ended = slot._replace(phase=ENDING, owns=False, paused=False, wakes=wakes)
        kind = FRESH if self.protocol.lives_have_ids else slot.kind
        queue = [*world.queue, (life, kind)]
        rejected = _world(
            _spend(world, "rejections"),
            store=store,
            slots=[*others, ended],
            queue=queue,
            fates=sorted([*world.fates, (life, Fate())]),
        )
        label = f"{slot.message} is rejected{_asked(answer)}, and returns as {life}"
        yield Move(label, _mark(rejected, slot.message, owed=False), is_progress=False)

    def _releases(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        store, answer, wakes = self._ask(world.store, Release(self._id(slot), "mine"), mine=slot.owns)
        fate = dict(world.fates)[slot.message]
        closed = answer == Applied(is_applied=True) and fate.waited and not fate.overtaken
        ended = slot._replace(phase=ENDING, owns=False, paused=False, wakes=wakes)
        released = _world(world, store=store, slots=[*others, ended])
        label = f"{slot.message} finishes{_asked(answer)}"
        finished = _mark(released, slot.message, owed=False, closed=fate.closed or closed)
        yield Move(label, finished)
        if world.budget.lost_replies:  # the messages to wake were in it
            again = slot._replace(phase=RETRIED, paused=False)
            lost = _world(_spend(finished, "lost_replies"), slots=[*others, again])
            yield Move(f"{label}; the reply is lost", lost, is_progress=False)

    def _worker_fails(self, world: World, slot: Slot, others: list[Slot]) -> Iterator[Move]:
        if world.budget.crashes:
            crashed = _mark(_spend(_world(world, slots=others), "crashes"), slot.message, excused=True)
            if slot.unacked and self.setting.recovers and slot.phase in (RUNNING, TOLD, ENDING, REQUEUEING):
                crashed = _world(crashed, queue=[*crashed.queue, (slot.message, HIDDEN)])
            elif slot.unacked and not self.setting.early:
                crashed = self._returns(crashed, slot)
            elif self._celery_loses(crashed, slot):
                is_last = slot.message not in [other.message for other in others]
                closed = is_last and slot.phase in (RUNNING, TOLD, RETRIED)
                crashed = _mark(crashed, slot.message, owed=False, closed=closed)
            yield Move(f"the worker of {slot.message} ({slot.phase}) crashes", crashed, is_progress=False)
        if world.budget.lost_acks and slot.unacked:
            slots = [*others, slot._replace(unacked=False)]
            lost = _world(self._returns(world, slot), slots=slots)
            lost = _mark(_spend(lost, "lost_acks"), slot.message, excused=True)
            if slot.phase == FRESH:
                lost = _mark(lost, slot.message, overtaken=True)
            label = (
                f"the worker of {slot.message} ({slot.phase}) loses its connection, {slot.message} goes back"
            )
            yield Move(label, lost, is_progress=False)

    def _returned(self, slot: Slot) -> tuple[str, str]:
        has_ends = (
            self.setting.gives_up or self.setting.replaces or self.setting.supersedes
        )  # else its promotion does not matter
        if has_ends and slot.kind in (PROMOTED, RETURNED):
            return (slot.message, RETURNED)
        return (slot.message, REDELIVERED if self.setting.flags else slot.kind)

    def _returns(self, world: World, slot: Slot) -> World:
        """The broker has the message again. A copy that says nothing of itself is like a new message."""
        returned = self._returned(slot)
        changed = _world(world, queue=[*world.queue, returned])
        if returned[1] == FRESH:
            return _mark(changed, slot.message, overtaken=True, closed=False)
        return _mark(changed, slot.message, closed=False) if self.setting.early else changed

    def _celery_loses(self, world: World, slot: Slot) -> bool:
        """Acknowledged early, and neither the store nor the broker nor another worker has it too."""
        elsewhere = (
            any(place.message == slot.message for place in world.store.line)
            or (slot.message, REDELIVERED if self.setting.flags else FRESH) in world.queue
            or (slot.message, RETURNED) in world.queue
            or any(
                other.message == slot.message and other.phase not in (PROMOTED, ENDING)
                for other in world.slots
            )
        )
        return self.setting.early and not elsewhere and slot.phase not in (ENDING, REQUEUEING)

    def _clock_runs(self, world: World) -> Iterator[Move]:
        store = world.store
        owners = {self._id(slot): slot for slot in world.slots if slot.owns}
        if world.budget.outages and store.holders:
            lapsed = store._replace(holders=tuple(lease._replace(lapsed=True) for lease in store.holders))
            away = _world(_spend(world, "outages"), store=lapsed)
            yield Move("the store is away for longer than all leases last", away, is_progress=False)
        for n, lease in enumerate(store.holders):
            owner = owners.get(lease.id)
            if owner and lease.lapsed:
                renew = Renew(lease.id, "mine", LATER - NOW)
                renewed, _, _ = self._ask(store._replace(due=False), renew, mine=True)
                slots = [slot._replace(paused=False) if slot is owner else slot for slot in world.slots]
                changed = _world(world, store=renewed._replace(due=store.due), slots=slots)
                yield Move(f"the heartbeat of {lease.id} renews its lease", changed)
            if lease.lapsed or (owner and not world.budget.pauses):
                continue
            lapsed = store._replace(holders=_put(store.holders, n, lease._replace(lapsed=True)))
            if owner:
                slots = [slot._replace(paused=True) if slot is owner else slot for slot in world.slots]
                paused = _mark(_spend(world, "pauses"), owner.message, excused=True)
                label = f"{lease.id} lives, but was paused, and its lease lapses"
                yield Move(label, _world(paused, store=lapsed, slots=slots), is_progress=False)
            else:
                yield Move(
                    f"the lease of {lease.id}, whose holder is dead, lapses", _world(world, store=lapsed)
                )
        yield from self._messages_expire(world)
        yield from self._messages_are_revoked(world)
        for n, place in enumerate(store.line):
            if place.offered != LATER:
                continue
            over = store._replace(line=_put(store.line, n, place._replace(offered=NOW)))
            if not self._is_underway(world, place):
                yield Move(f"the offer to {place.id} runs out", _world(world, store=over))
            elif world.budget.slow:
                label = f"the offer to {place.id} runs out while its copy is underway"
                yield Move(label, _world(_spend(world, "slow"), store=over), is_progress=False)

    def _messages_expire(self, world: World) -> Iterator[Move]:
        for n, place in enumerate(world.store.line):
            is_slow = self._is_underway(world, place)
            if place.deadline != LATER or (is_slow and not (place.over is not None and world.budget.slow)):
                continue
            line = _put(world.store.line, n, place._replace(deadline=NOW))
            over = _world(world, store=world.store._replace(line=line, due=True))
            if place.over is not None:
                over = _spend(over, "slow") if is_slow else over
                yield Move(f"{place.id}, whose wait is over, is to be woken again", over)
            elif place.gives_up:
                yield Move(f"{place.id} has waited for long enough", over)
            else:
                yield Move(f"{place.id} expires in line", _mark(over, place.message, expired=True))

    def _messages_are_revoked(self, world: World) -> Iterator[Move]:
        for place in world.store.line:
            fate = dict(world.fates)[place.message]
            if world.budget.revocations and place.state == "waiting" and len(place.message) == 1:
                revoked = _mark(_spend(world, "revocations"), place.message, expired=True)
                yield Move(f"{place.message} is revoked in line", revoked, is_progress=False)
            is_sought = self.setting.revocations and fate.expired and not world.reaper
            if is_sought and not self._is_underway(world, place):
                store, _, wakes = self._ask(world.store, Recall(place.id), mine=False)
                yield Move(f"a sweep recalls {place.message}", _world(world, store=store, reaper=wakes))

    def _is_underway(self, world: World, place: Place) -> bool:
        return (
            (place.message, PROMOTED) in world.queue
            or place.message in world.reaper
            or any(
                slot.message == place.message and (slot.phase == PROMOTED or slot.again)
                for slot in world.slots
            )
            or any(place.message in slot.wakes for slot in world.slots)
        )

    def _reaper_comes(self, world: World) -> Iterator[Move]:
        if world.reaper:
            queue = [*world.queue, (world.reaper[0], PROMOTED)]
            published = _world(world, queue=queue, reaper=world.reaper[1:])
            yield Move(f"the reaper publishes {world.reaper[0]} again", published)
            if world.budget.crashes:
                crashed = _world(_spend(world, "crashes"), reaper=())
                yield Move(
                    f"the reaper crashes with {world.reaper[0]} in its hands", crashed, is_progress=False
                )
        elif self.protocol.reaps and world.store.due:
            living = {self._id(slot) for slot in world.slots if slot.owns and not slot.paused}
            may_live = any(lease.lapsed and lease.id in living for lease in world.store.holders)
            sweep = Reap(NOW - 1 if may_live and self.protocol.sweeps_wait else NEVER)
            store, _, wakes = self._ask(world.store, sweep, mine=False)
            if store != world.store:
                yield Move("the reaper looks", _world(world, store=store, reaper=wakes))

    # The store, and the facts that no process knows.

    def _acquire(self, slot: Slot) -> Acquire:
        is_promoted = PROMOTED in (slot.phase, slot.kind) or slot.kind == RETURNED
        return Acquire(
            self._id(slot),
            "mine",
            ttl=LATER - NOW,
            limit=self.setting.limit,
            redelivered=slot.phase == REDELIVERED,
            promoted=EPOCH if is_promoted and self.protocol.knows_promoted else None,
            acks_late=not self.setting.early,
            message=None if self.protocol.parks_in_two_steps else slot.message.encode(),
            recovers=self.setting.recovers and self.protocol.keeps_messages,
            order="published" if self.setting.ordered and self.protocol.keeps_places else None,
            expires_in=self._expires_in(slot.message),
            queue=self._queue(slot.message),
            cost=self._cost(slot.message),
            **({} if slot.phase == REDELIVERED else self._terms(slot.message)),
        )

    def _cost(self, message: str) -> int:
        return 2 if self.setting.dear and message[0] == "a" else 1

    def _queue(self, message: str) -> str:
        is_other = self.setting.queues > 1 and message[0] != "a"
        return "/other" if is_other else "/"

    def _expires_in(self, message: str) -> int | None:
        return LATER - NOW if self.setting.hangs and message != "a" and not self.setting.gives_up else None

    def _terms(self, message: str) -> dict[str, Any]:
        """The terms on which a message that was not admitted before joins the line."""
        if len(message) > 1:
            return {}
        gives_up_in = LATER - NOW if self.setting.gives_up and message != "a" else None
        return {"gives_up_in": gives_up_in, "replaces": self.setting.replaces or self.setting.supersedes}

    def _forget(self, world: World) -> World:
        """Drop a lease that is gone: it has no owner."""
        held = {lease.id for lease in world.store.holders}
        if all(self._id(slot) in held for slot in world.slots if slot.owns):
            return world
        return _world(world, slots=[s._replace(owns=s.owns and self._id(s) in held) for s in world.slots])

    def _ask(
        self, store: Store, operation: Operation, *, mine: bool
    ) -> tuple[Store, object, tuple[str, ...]]:
        """Let the store do one step: its new content, the answer, and the messages to publish."""
        known = (store, operation, mine)
        if known not in self._answers:
            self._answers[known] = self._step(store, operation, mine=mine)
        return self._answers[known]

    def _step(
        self, store: Store, operation: Operation, *, mine: bool
    ) -> tuple[Store, object, tuple[str, ...]]:
        id = "" if isinstance(operation, Reap) else operation.id
        document, line = _load(store, id, self.setting.limit, mine=mine)
        if self.protocol.knows_queues:
            document = replace(document, queue=store.queue)
        seen, seen_line = _as_of_many(document, line, operation) if self.setting.crowded else (document, line)
        transition = self.protocol.step(seen, seen_line, operation, NOW)
        if isinstance(transition.answer, Granted) and not mine and transition.answer.fence <= LAST_FENCE:
            raise Violation(f"the fence of {id} does not grow")
        messages = {place.id: place.message for place in store.line}
        entries = {entry.id: entry for entry in (*line.head, *line.aside, *line.behind)}
        if isinstance(operation, (Acquire, Enqueue)) and operation.message and transition.kept:
            messages[id] = operation.message.decode()
        for gone in transition.removed:
            entries.pop(gone, None)
        for entry in transition.entries:
            entries[entry.id] = entry
        places = [
            Place(
                e.id,
                messages[e.id],
                _offered(e),
                self._count(e),
                e.state,
                self._deaths(e),
                _deadline(e),
                e.gives_up,
                e.replaceable,
                e.over,
                e.cost,
            )
            for e in sorted(entries.values(), key=lambda entry: entry.seq)
        ]
        leases = [
            Lease(holder.id, holder.may_have_copies, holder.expiry <= NOW, holder.cost)
            for holder in sorted(
                {*document.holders} - {*seen.holders} | {*transition.document.holders},
                key=lambda holder: holder.fence,
            )
        ]
        tombstones = dict(store.tombstones)
        if transition.tombstone is not None:
            is_known = transition.tombstone.startswith((BEGUN, OVER))
            tombstones[id] = transition.tombstone if is_known else "another"
        marks = tuple(sorted(tombstones.items()))
        queue = transition.document.queue if self.setting.queues > 1 else ""
        changed = Store(tuple(leases), tuple(places), marks, transition.due is not None, queue)
        return changed, transition.answer, tuple(messages[woken] for woken in transition.wake)

    def _deaths(self, entry: Entry) -> int:
        return min(entry.deaths, MOST_DEATHS) if self.setting.kills else 0

    def _count(self, entry: Entry) -> int:
        return entry.offers if entry.state == "behind" else min(entry.offers, self.setting.offers_matter)

    def _id(self, slot: Slot) -> str:
        return self.protocol.id_of(slot.message)

    def _end_without_body(self, world: World, message: str) -> World:
        """A delivery of this message ends its task, since its wait is over."""
        fate = dict(world.fates)[message]
        if fate.entered and not fate.overtaken:
            raise Violation(f"{message} has begun before, and is ended without its body")
        if fate.skipped and not fate.excused:
            raise Violation(f"{message} ends a second time by our own doing")
        return _mark(world, message, owed=False, skipped=True)

    def _enter(self, world: World, slot: Slot) -> World:
        """The body of this delivery begins: may it?"""
        fate = dict(world.fates)[slot.message]
        if fate.closed:
            raise Violation(f"{slot.message} runs again, though it had waited and has finished")
        if self.setting.ordered:
            owed = [name for name in world.owed if name < slot.message and len(name) == 1]
            gone = [other.message for other in world.slots if other.phase in (RUNNING, TOLD)]
            gone += [place.message for place in world.store.line if place.state == "aside"]
            gone += [id for id, mark in world.store.tombstones if mark.startswith(OVER)]
            earlier = [name for name in owed if name not in gone]
            if len(earlier) >= self.setting.limit:  # each of fewer has a slot that is offered to it
                raise Violation(f"{slot.message} starts before {earlier[0]}")
        if fate.superseded:
            raise Violation(f"{slot.message} runs, though a newer call has superseded its run")
        if fate.skipped and not fate.excused:
            raise Violation(f"{slot.message} runs, though it has ended without its body")
        if fate.entered and not fate.excused:
            raise Violation(f"{slot.message} runs a second time by our own doing")
        return _mark(
            world,
            slot.message,
            entered=True,
            waited=fate.waited or (slot.phase == REDELIVERED and not slot.again),
        )


def _load(store: Store, id: str, limit: int, *, mine: bool) -> tuple[Document, Line]:
    holders = tuple(
        Holder(
            lease.id,
            "mine" if mine and lease.id == id else "another",
            NOW if lease.lapsed else LATER,
            fence,
            lease.waited,
            cost=lease.cost,
        )
        for fence, lease in enumerate(store.holders, 1)
    )
    entries = [
        Entry(p.id, seq, NEVER if p.offered > LATER else p.offered, *p[3:])
        for seq, p in enumerate(store.line, 1)
    ]
    due, deadline = overdue(entries, NOW)
    own = next((entry for entry in entries if entry.id == id), None)
    head = tuple(entry for entry in entries if entry.state == "waiting")
    line = Line(
        waiting=len(head),
        head=head,
        aside=tuple(entry for entry in entries if entry.state == "aside"),
        behind=tuple(entry for entry in entries if entry.state == "behind"),
        overdue=due,
        deadline=deadline,
        last=head[-NAMED:],
        entry=own,
        ahead=sum(own is None or entry.seq < own.seq for entry in head),
        tombstone=dict(store.tombstones).get(id),
    )
    return Document(limit, LAST_FENCE, holders, EPOCH, NOW if due else deadline), line


def _as_of_many(document: Document, line: Line, operation: Operation) -> tuple[Document, Line]:
    """Leave out what a step need not read of a key with many holders."""
    ids = ids_of(operation)
    read = tuple(one for one in document.holders if one.id in ids or one.expiry <= NOW)
    unread = [one.expiry for one in document.holders if one not in read]
    behind = tuple(entry for entry in line.behind if entry.id in {one.id for one in read})
    return (
        replace(document, holders=read, unread=len(unread), unread_expiry=min(unread, default=NEVER)),
        replace(line, behind=behind, others_behind=len(line.behind) - len(behind)),
    )


def _offered(entry: Entry) -> int:
    if entry.offer_until == NEVER:
        return LATER + 1
    return LATER if entry.offer_until > NOW else NOW


def _deadline(entry: Entry) -> int:
    return entry.deadline if entry.deadline == NEVER else min(entry.deadline, LATER)


def _world(
    world: World,
    *,
    store: Store | None = None,
    queue: list[tuple[str, str]] | None = None,
    slots: list[Slot] | None = None,
    reaper: tuple[str, ...] | None = None,
    fates: list[tuple[str, Fate]] | None = None,
) -> World:
    """The world with these parts changed, in the one form that all equal worlds have."""
    return World(
        world.store if store is None else store,
        world.queue if queue is None else tuple(sorted(queue)),
        world.slots if slots is None else tuple(sorted(slots)),
        world.reaper if reaper is None else reaper,
        world.fates if fates is None else tuple(fates),
        world.budget,
        world.unsent,
    )


def _spend(world: World, what: str) -> World:
    return world._replace(budget=world.budget._replace(**{what: getattr(world.budget, what) - 1}))


def _mark(world: World, message: str, **changes: bool) -> World:
    fates = tuple((name, fate._replace(**changes) if name == message else fate) for name, fate in world.fates)
    fates = tuple((name, CLOSED if fate.closed else fate) for name, fate in fates)
    return world._replace(fates=fates)


def _put(items: tuple, position: int, item: tuple) -> tuple:
    return (*items[:position], item, *items[position + 1 :])


def _asked(answer: object) -> str:
    return " and releases" if answer == Applied(is_applied=True) else ", its lease is lost"
