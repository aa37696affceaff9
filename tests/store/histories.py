"""What may happen to the keys of a store: actions, random histories of them, and rare ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import strategies as some
from hypothesis.strategies import SearchStrategy as Strategy

from celery_exclusive.core.operations import (
    AcquireAlone,
    Charge,
    Drop,
    Ending,
    Enqueue,
    ForceRelease,
    GiveUp,
    Hold,
    KeyOperation,
    Order,
    Recall,
    Release,
    Remove,
    Renew,
    Requeue,
    Restore,
    SetLimit,
    StandBehind,
)
from celery_exclusive.core.records import NEVER, SECOND, SENT_LIFE, Phase
from celery_exclusive.core.room import NO_LIMIT

OFFER = 5 * SECOND
TOMBSTONE = 600 * SECOND
LIMITS = {"one at a time": 1, "two:ü": 2}
IDS = ("a", "b", "c", "d", "ünï/1")
CROWD = 500
"""A limit above all crowds."""


@dataclass(frozen=True)
class Take:
    """A delivery. `limit` None is the key's usual one; `kind` says how the broker brought it."""

    key: str
    id: str
    token: str
    ttl: int
    limit: int | None
    kind: str
    message: bytes | None
    max_waiting: int | None = None
    late: bool = True
    takes_over: tuple[str, Phase] | None = None
    at_once: bool = False
    recovers: bool = False
    order: Order | None = None
    expires_in: int | None = None
    gives_up_in: int | None = None
    replaces: bool = False
    queue: str = ""
    cost: int = 1
    rates: tuple[tuple[int, int], ...] = ()
    part: str = ""
    weight: int = 1
    part_limit: int = NO_LIMIT
    part_rates: tuple[tuple[int, int], ...] = ()
    joins: bool = False


@dataclass(frozen=True)
class Crowd:
    """So many tasks acquire a key at once, with their messages kept or without. Nobody looks meanwhile."""

    key: str
    first: int
    count: int
    ttl: int
    recovers: bool
    cost: int = 1
    part: str = ""

    def takes(self) -> list[Take]:
        ids = map(str, range(self.first, self.first + self.count))
        terms = {"late": self.recovers, "at_once": True, "recovers": self.recovers, "cost": self.cost}
        terms["part"] = self.part
        return [Take(self.key, id, "t1", self.ttl, CROWD, "fresh", b"one", **terms) for id in ids]


@dataclass(frozen=True)
class Follow:
    """A worker takes one of the messages that were published again."""

    number: int
    is_redelivered: bool
    late: bool = True
    cost: int = 1
    rates: tuple[tuple[int, int], ...] = ()
    part: str = ""
    weight: int = 1
    part_limit: int = NO_LIMIT
    part_rates: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Finish:
    """One of those who had a lease, though it may be over, gives it back."""

    number: int
    ending: Ending = "done"


@dataclass(frozen=True)
class ComeAgain:
    """One of those who had a lease, though it may be over, is to be delivered again."""

    number: int
    ttl: int


@dataclass(frozen=True)
class Give:
    key: str
    operation: KeyOperation


@dataclass(frozen=True)
class Keep:
    leases: tuple[tuple[str, Renew], ...]


@dataclass(frozen=True)
class Reap:
    limit: int
    every: int
    recovers_until: int = NEVER


@dataclass(frozen=True)
class Wait:
    time: int


@dataclass(frozen=True)
class Ignore:
    """Nobody takes an offer: the reaper comes so often, each time when something is due.

    If `is_seen` is false, it is not the reaper who sees the last of it, but whoever comes next.
    """

    times: int
    is_seen: bool


Action = Take | Crowd | Follow | Finish | ComeAgain | Give | Keep | Reap | Wait | Ignore

keys = some.sampled_from((*LIMITS, *LIMITS, "one at a time"))
tokens = some.sampled_from(("t1", "t1", "t1", "t 2"))
ttls = some.sampled_from((30 * SECOND, 30 * SECOND, 86_400 * SECOND, 86_400 * SECOND, 2 * SECOND, 1))
kinds = some.sampled_from(("fresh", "fresh", "fresh", "redelivered", "promoted", "stranger", "both"))
messages = some.sampled_from((b"one", b"one", b"two\n\xff", b"", None))
pauses = (
    0,
    1,
    SECOND,
    SECOND,
    SECOND,
    SECOND // 40,
    10 * SECOND,
    OFFER - 1,
    OFFER,
    OFFER + 1,
    30 * SECOND,
    TOMBSTONE,
    -SECOND,
    -3600 * SECOND,
)
lates = some.sampled_from((True, True, False))
endings = some.sampled_from(("done", "done", "done", "open", "if_no_copy"))
again_ttls = some.sampled_from((60 * SECOND, 1))
most = some.sampled_from((None, None, 0, 1, 2, 3))
phases = some.sampled_from(get_args(Phase))
queued = some.just("queued")
orders = some.sampled_from((None, None, None, "published", "any"))
rarely = some.sampled_from((False, False, True))
expiries = some.sampled_from((None, None, None, None, 0, SECOND, OFFER, 60 * SECOND))
queues = some.sampled_from(("", "/low", "/low", "/low", "/12 hïgh"))
windows = some.sampled_from(((0, 0), (SECOND, 3 * SECOND), (SECOND, 60 * SECOND)))
neglect = some.builds(Ignore, some.sampled_from((8, 9, 9, 17, 24)), some.sampled_from((False, False, True)))
no_crowds: Strategy[list[Action]] = some.just([])


def histories_of(
    ids: Strategy[str],
    limits: Strategy[int | None],
    chosen: Strategy[int],
    *,
    shortest: int,
    longest: int,
    share: tuple[bool, ...],
    crowd: int | None = None,
    crowds: Strategy[list[Action]] = no_crowds,
) -> Strategy[list[Action]]:
    """A line of some ids, which nobody looks after perhaps, and then what happens to these ids.

    `limits` are those of deliveries, where None is the key's usual one, `chosen` those of other operations.
    `share`: how many of the operations are of those that have a limit. `crowd` is the limit of the first ids.
    `crowds` are there before them all.
    """
    taken = some.none() | some.tuples(ids, phases)
    take = (
        keys,
        ids,
        tokens,
        ttls,
        limits,
        kinds,
        messages,
        most,
        lates,
        taken,
        rarely,
        rarely,
        orders,
        expiries,
        expiries,
        rarely,
        queues,
    )
    arrivals = some.builds(
        Take, keys, ids, some.just("t1"), ttls, some.just(crowd), some.just("fresh"), some.just(b"one")
    )
    inherited = some.none() | some.tuples(ids, tokens)
    removals = some.builds(Remove, ids, some.sampled_from(("done", "open", "superseded", "aside")))
    renewals = some.lists(some.tuples(keys, some.builds(Renew, ids, tokens, ttls)), max_size=4).map(tuple)
    contents = some.sampled_from((b"one", b"two"))
    terms = (expiries, expiries, rarely)
    with_limits = some.one_of(
        some.builds(Take, *take, joins=rarely),
        some.builds(Give, keys, some.builds(Enqueue, ids, contents, chosen, *terms, queue=queues)),
        some.builds(Give, keys, some.builds(Enqueue, ids, contents, chosen, waits=windows)),
        some.builds(Give, keys, some.builds(Restore, ids, tokens, ttls, chosen)),
    )
    others = some.one_of(
        some.builds(Follow, some.integers(0, 3), some.sampled_from((False, False, False, True)), lates),
        some.builds(Follow, some.integers(0, 3), some.just(False), lates),
        some.builds(Finish, some.integers(0, 3), endings),
        some.builds(ComeAgain, some.integers(0, 3), again_ttls),
        some.builds(Give, keys, some.builds(Release, ids, tokens, endings) | removals),
        some.builds(Give, keys, some.builds(Requeue, ids, tokens, again_ttls)),
        some.builds(
            Give,
            keys,
            some.builds(ForceRelease, ids)
            | some.builds(GiveUp, ids, some.booleans())
            | some.builds(Recall, ids)
            | some.builds(StandBehind, ids)
            | some.builds(Drop, ids, tokens),
        ),
        some.builds(
            Give, keys, some.builds(AcquireAlone, ids, tokens, ttls, inherited, phases, rarely, rarely)
        ),
        some.builds(
            Give, keys, some.builds(AcquireAlone, ids, tokens, ttls, some.none(), queued, some.just(True))
        ),
        some.builds(Keep, renewals),
        some.builds(
            Reap,
            some.sampled_from((0, 2, 2, 100)),
            some.sampled_from((0, 0, SECOND)),
            some.sampled_from((0, NEVER)),
        ),
        some.builds(Wait, some.sampled_from(pauses)),
        some.builds(Ignore, some.sampled_from((1, 1, 1, 2, 8, 9, 9, 80)), some.booleans()),
    )
    actions = some.sampled_from(share).flatmap(lambda has_limit: with_limits if has_limit else others)
    return some.builds(
        lambda crowds, first, neglect, rest: [*crowds, *first, *neglect, *rest],
        crowds,
        some.lists(arrivals, min_size=shortest, max_size=longest),
        some.just([]) | some.tuples(neglect, some.builds(Take, *take) | arrivals),
        some.integers(0, 3).flatmap(
            lambda size: some.lists(actions, min_size=10 * size, max_size=10 * size + 9)
        ),
    )


few = histories_of(
    some.sampled_from(IDS),
    some.sampled_from((None, None, None, None, None, None, None, None, 1, 3)),
    some.sampled_from((1, 1, 2)),
    shortest=0,
    longest=10,
    share=(False, False, False, True),
)
many = histories_of(
    some.sampled_from((*IDS, *map(str, range(30)))),
    some.sampled_from((1, 1, 6)),
    some.sampled_from((1, 6, 20)),
    shortest=15,
    longest=30,
    share=(False, True, True, True),
)
"""With lines that are longer than a step reads under a small limit."""
crowded = histories_of(
    some.sampled_from((*IDS, *map(str, range(30)))),
    some.sampled_from((9, 12, 12, 20)),
    some.sampled_from((12, 20)),
    shortest=15,
    longest=30,
    share=(False, False, True),
    crowd=20,
)
"""With more holders than a step reads."""


def _crowds(early: int, late: int, ttls: tuple[int, int], pause: int) -> list[Action]:
    """Two crowds of one key, one with its messages kept, and perhaps an outage in which they expire."""
    first = Crowd("one at a time", 0, early, ttls[0], recovers=False)
    return [first, Crowd("one at a time", early, late, ttls[1], recovers=True), Wait(pause)]


lives = some.sampled_from((SECOND, SECOND, 30 * SECOND, 86_400 * SECOND))
huge = histories_of(
    some.sampled_from((*IDS, "0", "1", *map(str, range(0, 400, 25)))),
    some.sampled_from((9, 12, CROWD, CROWD)),
    some.sampled_from((12, CROWD)),
    shortest=0,
    longest=2,
    share=(False, False, True),
    crowd=CROWD,
    crowds=some.builds(
        _crowds,
        some.integers(0, 250),
        some.integers(0, 150),
        some.tuples(lives, lives),
        some.sampled_from((0, SECOND, 30 * SECOND)),
    ),
)
"""With up to 400 holders, of whom a step does not even read all that have expired together."""


histories = some.sampled_from((few, many, many, crowded, huge)).flatmap(lambda kind: kind)


def take(
    id: str,
    *,
    limit: int | None = None,
    kind: str = "fresh",
    token: str = "t1",
    ttl: int = 30 * SECOND,
    takes_over: str | None = None,
    **terms: Any,
) -> Take:
    seen: tuple[str, Phase] | None = (takes_over, "queued") if takes_over else None
    return Take("one at a time", id, token, ttl, limit, kind, b"one", takes_over=seen, **terms)


def priced(id: str, cost: int) -> Take:
    """A delivery under a limit of five units, and a rate of seven in ten seconds."""
    return take(id, limit=5, cost=cost, rates=((7, 10 * SECOND),))


def call_in_window(id: str) -> Give:
    """A call that opens a window for other calls, or comes within it."""
    return Give("one at a time", Enqueue(id, b"one", waits=(2 * SECOND, 5 * SECOND)))


def call(id: str, *, repeated: bool = False) -> Give:
    """A call whose message is sent by the step that grants its key."""
    alone = AcquireAlone(id, id, 30 * SECOND, None, "queued", sends=True, repeated=repeated)
    return Give("one at a time", alone)


def keep(id: str, order: Order | None = None) -> Take:
    """The first delivery of a message that stays behind its run."""
    at_once = {"at_once": True, "recovers": True, "order": order}
    return Take("one at a time", id, "t1", 30 * SECOND, None, "fresh", b"one", **at_once)


def begin_unique(id: str) -> tuple[Action, ...]:
    """A message that was published with its key begins, and stays behind its run."""
    return Give("one at a time", AcquireAlone(id, "t0", 86_400 * SECOND, None, "queued")), keep(id)


def publish(id: str, queue: str) -> Give:
    """A call that takes its place in line."""
    return Give("one at a time", Enqueue(id, b"one", queue=queue))


def within_rates(id: str) -> tuple[Action, ...]:
    """A call takes its place in line, and its message begins, if there is room, and ends."""
    rates = (2, SECOND), (5, 10 * SECOND)
    call = Give("one at a time", Enqueue(id, b"one", rates=rates))
    return call, take(id, kind="promoted", rates=rates), Finish(0), Wait(SECOND // 8)


FINISHED = [take("a"), take("b"), Finish(0), Follow(0, False), Finish(0)]
RARE: dict[str, list[Action]] = {
    "more leases die together than a step ends, and the sweep has a limit": [
        Crowd("one at a time", 0, 52, SECOND, recovers=False),
        Crowd("one at a time", 52, 91, SECOND, recovers=True),
        Wait(SECOND),
        *(Reap(2, 0) for _ in range(3)),
    ],
    "more leases expire together than a step reads, with and without their messages": [
        Crowd("one at a time", 0, 150, 30 * SECOND, recovers=False),
        Wait(SECOND),
        Crowd("one at a time", 150, 60, 30 * SECOND, recovers=True),
        Wait(40 * SECOND),
        Give("one at a time", Release("3", "t1")),
        Take("one at a time", "new", "t1", 30 * SECOND, CROWD, "fresh", b"one", at_once=True, recovers=True),
        Keep(tuple(("one at a time", Renew(str(number), "t1", 30 * SECOND)) for number in range(150, 180))),
        *(Reap(9, 0) for _ in range(3)),
    ],
    "each call replaces the one before it, and nobody takes what was replaced": [
        *(take(id, replaces=True) for id in "abcd"),
        Reap(9, 0),
        *(it for time in (OFFER, 2 * OFFER, 600 * SECOND) for it in (Wait(time), Reap(9, 0))),
        Follow(-1, False),
        Follow(-1, True),
        Finish(0),
        take("e", replaces=True),
    ],
    "a call in another queue passes the ones that nobody takes": [
        publish("a", "/low"),
        publish("b", "/low"),
        publish("c", "/high"),
        *(it for _ in range(4) for it in (Wait(OFFER), Reap(9, 0))),
        Follow(-1, False),
        Follow(-2, False),
        publish("d", "/low"),
        Finish(0),
        *(it for _ in range(3) for it in (Wait(2 * OFFER), Reap(9, 0))),
    ],
    "several step aside at once, and are offered in the order of their ids": [
        *(Give("two:ü", Enqueue(id, b"one", 2, queue="/low")) for id in "dcba"),
        Give("two:ü", Enqueue("ünï/1", b"one", 2, queue="/high")),
        *(it for _ in range(4) for it in (Wait(OFFER), Reap(9, 0))),
    ],
    "a call stands behind the first of two that have long offers, and behind one whose wait is over": [
        *(Give("two:ü", Enqueue(id, b"one", 2)) for id in "ab"),
        Give("two:ü", StandBehind("a")),
        *(it for _ in range(2) for it in (Wait(OFFER), Reap(9, 0))),
        *(take(id, replaces=True) for id in "abc"),
        Give("one at a time", StandBehind("b")),
        Give("one at a time", StandBehind("elsewhere")),
    ],
    "a message of another queue replaces the one that waits": [
        take("a"),
        take("b", replaces=True, queue="/low"),
        take("c", replaces=True, queue="/high"),
        publish("d", "/high"),
        Finish(0),
        *(it for _ in range(3) for it in (Wait(OFFER), Reap(9, 0))),
    ],
    "a renewal leaves the queues of a line as they are": [
        take("a"),
        publish("b", "/low"),
        Keep((("one at a time", Renew("a", "t1", 30 * SECOND)),)),
        publish("c", "/high"),
        Finish(0),
        *(it for _ in range(3) for it in (Wait(OFFER), Reap(9, 0))),
    ],
    "calls of one queue wait for the first": [
        *(publish(id, "/low") for id in "abc"),
        *(it for _ in range(3) for it in (Wait(OFFER), Reap(9, 0))),
        take("a", kind="promoted", queue="/low"),
        Finish(0),
        take("d", queue="/high"),
    ],
    "calls within two rates, and above them, and when no start counts any more": [
        *within_rates("a"),
        *within_rates("b"),
        *within_rates("c"),
        Wait(SECOND),
        Reap(9, 0),
        *(it for id in "de" for it in (take(id, rates=((2, SECOND), (5, 10 * SECOND))), Finish(0))),
        Give("one at a time", Enqueue("a", b"one", rates=((2, SECOND),))),
        Wait(20 * SECOND),
        take("b", rates=((2, SECOND),), recovers=True, at_once=True),
        Finish(0),
        Wait(SECOND // 2),
        take("c", rates=((2, SECOND),), recovers=True, at_once=True),
        Finish(0),
        Wait(SECOND),
        *within_rates("d"),
        within_rates("e")[0],
    ],
    "two at once within a rate, a repetition, a refusal, another rate, and a clock that is set back": [
        *(take(id, limit=2, rates=((4, 10 * SECOND),)) for id in "aba"),
        take("c", limit=2, rates=((4, 10 * SECOND),), at_once=True),
        Finish(0),
        take("c", limit=2, rates=((5, 10 * SECOND),)),
        Finish(0),
        Finish(0),
        Wait(-SECOND),
        take("d", limit=2, rates=((5, 10 * SECOND),)),
        Wait(5 * SECOND),
        *(take(id, limit=9, rates=((5, 10 * SECOND),)) for id in "abc"),
    ],
    "one that is offered the slot is not replaced": [
        take("a"),
        take("b", replaces=True),
        Finish(0),
        take("c", replaces=True),
        take("d", replaces=True),
        Wait(OFFER),
        take("e", replaces=True),
    ],
    "a copy of what was replaced comes twice, and again": [
        take("a"),
        take("b", replaces=True),
        take("c", replaces=True),
        Wait(OFFER),
        Reap(9, 0),
        *(take("b", kind=kind, token=kind) for kind in ("promoted", "promoted", "both", "fresh")),
    ],
    "a long line is behind the one that was replaced": [
        take("a"),
        take("b", replaces=True),
        *(take(f"{number}") for number in range(12)),
        take("c", replaces=True),
        take("d", replaces=True),
    ],
    "messages give up, but not while a slot is offered to them": [
        take("a"),
        take("b", gives_up_in=SECOND),
        take("c", gives_up_in=SECOND, expires_in=2 * SECOND),
        take("d", gives_up_in=SECOND, expires_in=0),
        Finish(0),
        Wait(SECOND),
        Reap(9, 0),
        Wait(OFFER),
        Reap(9, 0),
        *(Follow(number, False) for number in range(4)),
    ],
    "one that waits comes again, and gives up when it would have": [
        take("a"),
        take("b", gives_up_in=3 * SECOND),
        Wait(SECOND),
        take("b", kind="redelivered", gives_up_in=60 * SECOND),
        Wait(2 * SECOND),
        Reap(9, 0),
        take("b", kind="redelivered"),
        take("b", kind="redelivered"),
    ],
    "calls gather in a window": [
        *(call_in_window(id) for id in "aab"),
        Wait(SECOND),
        call_in_window("a"),
        Wait(SECOND),
        Reap(9, 0),
        call_in_window("a"),
        call_in_window("b"),
        Follow(0, False),
        Wait(60 * SECOND),
        call_in_window("b"),
        call_in_window("c"),
        Finish(0, "open"),
        call_in_window("c"),
    ],
    "messages expire in the middle of a line, and no worker ends them": [
        *(take(f"{number}", expires_in=number * SECOND) for number in range(12)),
        Wait(9 * SECOND),
        Reap(9, 0),
        take("10", expires_in=SECOND),
        Give("one at a time", Remove("9")),
        *(Follow(number, False) for number in range(4)),
        Wait(SECOND),
        Reap(9, 0),
        Wait(600 * SECOND),
        Reap(9, 0),
    ],
    "more messages expire than a sweep recalls": [
        *(take(f"{number}", expires_in=SECOND) for number in range(130)),
        Wait(SECOND),
        *(Reap(1, 0) for _ in range(3)),
    ],
    "the line of messages that expire ends, and a new one begins": [
        take("a"),
        take("b", expires_in=OFFER),
        Give("one at a time", Remove("b")),
        take("c"),
        Finish(0),
        Wait(OFFER),
        Reap(9, 0),
    ],
    "a task that waits is recalled, and one that runs is not": [
        *(take(id) for id in "abc"),
        *(Give("one at a time", Recall(id)) for id in "acd"),
        Follow(0, False),
    ],
    "tasks that wait are dropped, and none that runs or was dropped by another": [
        *(take(id) for id in "abc"),
        *(Give("one at a time", Drop(id, "t1")) for id in "abbc"),
        Give("one at a time", Drop("b", "t 2")),
        Follow(0, False),
        take("b"),
    ],
    "the offer of a dropped task is made to the next one by a sweep": [
        *(take(id) for id in "abcd"),
        Finish(0),
        Give("one at a time", Drop("b", "t1")),
        Give("one at a time", Drop("c", "t1")),
        Reap(9, 0),
        Follow(-1, False),
    ],
    "runs die again and again, and each offer says how often": [
        keep("a"),
        *(it for _ in range(3) for it in (Wait(30 * SECOND), Reap(9, 0), Follow(-1, False))),
        Finish(-1, "open"),
        Wait(OFFER),
        Reap(9, 0),
    ],
    "a published message is late, and others come": [
        Give("one at a time", Enqueue("a", b"one", 1)),
        Wait(OFFER),
        Give("one at a time", Enqueue("b", b"one", 1)),
        Wait(OFFER),
        Reap(9, 0),
        take("c"),
        Wait(OFFER),
        Reap(9, 0),
    ],
    "a copy that does not say its part is the last of a line with parts": [
        *(take("b", part=part) for part in ("", "b c", "acme")),
        Take("two:ü", "ünï/1", "t1", 86_400 * SECOND, None, "fresh", b"one", part="b c"),
        Give("two:ü", Enqueue("a", b"one", 1, gives_up_in=5 * SECOND, cost=2, part="acme")),
        Ignore(9, False),
        Follow(2, False, cost=5),
    ],
    "a run with its message behind it ends, and comes again": [
        keep("a"),
        Finish(0, "open"),
        Wait(OFFER),
        take("b"),
    ],
    "a run with its message behind it keeps its place": [
        keep("a", "published"),
        take("b"),
        Finish(0, "open"),
        Wait(OFFER),
        Reap(9, 0),
    ],
    "an arrival sees the head step aside": [*map(take, "abc"), Ignore(9, False), take("d")],
    "what is aside passes those in line": [
        *map(take, "abcd"),
        Ignore(20, True),
        take("d"),
        take("b"),
        Finish(1),
        take("c"),
    ],
    "a copy has found its message running, and comes again when that is done": [
        take("a"),
        Take("one at a time", "a", "t 2", 30 * SECOND, None, "redelivered", None),
        Finish(0),
        take("a", kind="redelivered", token="t 2"),
    ],
    "a tombstone has ended, and the clock goes back": [
        take("a"),
        Follow(0, True),
        Finish(0),
        Wait(TOMBSTONE),
        Reap(9, 0),
        Wait(-SECOND),
        Follow(0, True),
    ],
    "a tombstone has ended long ago, and the clock goes back": [
        take("a"),
        take("c"),
        Give("one at a time", Remove("c")),
        Wait(TOMBSTONE + 60 * SECOND),
        Reap(9, 0),
        Wait(-3600 * SECOND),
        Give("one at a time", Restore("c", "t1", 30 * SECOND, 2)),
    ],
    "what is aside had its last offer": [*map(take, "abc"), Ignore(150, True), take("d")],
    "no more than limit step aside at once": [
        *map(take, IDS),
        Wait(30 * SECOND),
        take(IDS[-1], limit=3),
        Ignore(8, False),
        take(IDS[-1], limit=1),
    ],
    "a second wave steps aside at once": [
        *(take(id, limit=2) for id in "abcdefg"),
        Ignore(9, False),
        take("h", limit=2),
    ],
    "what is aside while no slot is free is nothing for the reaper": [
        *map(take, "abc"),
        Ignore(9, True),
        take("c", ttl=86_400 * SECOND),
        Wait(TOMBSTONE),
        Reap(100, 0),
    ],
    "all but the last step aside": [*map(take, "abcdefg"), Ignore(80, True), take("e")],
    "far behind in line": [*map(take, "abcdefg"), take("g"), take("f")],
    "a short lease after a long one": [
        take("a", limit=2),
        take("b", limit=2, ttl=SECOND),
        Wait(SECOND),
        Give("one at a time", Release("b", "t1")),
    ],
    "a renewal at the very end": [
        take("a"),
        Wait(30 * SECOND),
        Keep((("one at a time", Renew("a", "t1", SECOND)),)),
    ],
    "the reaper comes when the first life of a renewed lease has ended": [
        take("a", ttl=SECOND),
        Keep((("one at a time", Renew("a", "t1", 30 * SECOND)),)),
        Wait(2 * SECOND),
        Reap(100, 0),
        take("b"),
    ],
    "nobody but who is aside": [
        *map(take, "abc"),
        Ignore(9, True),
        take("c"),
        Finish(1),
        take("d"),
    ],
    "a copy behind its own run": [
        take("a"),
        take("a", kind="redelivered", token="t 2"),
        Finish(0),
        take("a", kind="redelivered"),
    ],
    "a copy of what has begun under early acknowledgement": [
        *map(take, "ab"),
        Finish(0),
        Follow(0, False, late=False),
        Follow(0, False),
        Wait(30 * SECOND),
        Follow(0, False),
        Follow(0, True),
    ],
    "a copy waits for the end of a run whose lease has ended": [
        *map(take, "ab"),
        Finish(0),
        Follow(0, False),
        Wait(30 * SECOND),
        Finish(0),
        Follow(0, False),
    ],
    "a unique key is queued, runs beside its copy, and is released": [
        Give("one at a time", AcquireAlone("a", "t0", 86_400 * SECOND, None, "queued")),
        take("a"),
        take("a", token="t 2"),
        Finish(0, "if_no_copy"),
        Finish(0),
    ],
    "a queued lease goes over to a delivery, but not to what has finished": [
        take("b"),
        Finish(0),
        take("b", kind="redelivered"),
        Finish(1),
        Give("one at a time", AcquireAlone("a", "t0", 86_400 * SECOND, None, "queued")),
        take("b", kind="redelivered", takes_over="a"),
        take("c", takes_over="a"),
        take("d", takes_over="c"),
    ],
    "a call is repeated while it is queued, runs, and has finished, and the key has another holder": [
        call("a"),
        call("a"),
        take("a"),
        call("a"),
        Finish(0),
        call("a"),
        call("b"),
        call("a"),
        Give("one at a time", GiveUp("a", releases=True)),
        Wait(SENT_LIFE),
        Give("one at a time", Release("b", "b")),
        call("a"),
    ],
    "a call is refused when it is repeated, and its first request comes later": [
        call("a"),
        call("b", repeated=True),
        Give("one at a time", Release("a", "a")),
        call("b"),
        call("c", repeated=True),
        call("c", repeated=True),
    ],
    "a call is given up before its request comes, and after it": [
        Give("one at a time", GiveUp("a", releases=True)),
        call("a"),
        take("a"),
        call("b"),
        Give("one at a time", GiveUp("b", releases=True)),
        Give("one at a time", AcquireAlone("c", "c", 30 * SECOND, None, "queued")),
        Give("one at a time", GiveUp("c", releases=True)),
        Give("one at a time", GiveUp("c", releases=True)),
        Give("one at a time", AcquireAlone("c", "c", 30 * SECOND, None, "queued")),
    ],
    "the lease of a sent message has ended, and it is delivered, enqueued, restored and sent again": [
        call("a"),
        Wait(30 * SECOND),
        Give("one at a time", Restore("a", "t1", SECOND)),
        Wait(SECOND),
        Give("one at a time", Enqueue("a", b"one")),
        take("b"),
        take("a"),
        call("a"),
    ],
    "what had waited, was kept for its queue, and comes as a fresh one, has waited": [
        take("a", kind="redelivered"),
        ComeAgain(0, 60 * SECOND),
        take("a"),
        Finish(1, "if_no_copy"),
    ],
    "the copy of a run that hands its lease over joins the line": [
        take("a"),
        take("a", token="t 2"),
        Give("one at a time", AcquireAlone("b", "t3", SECOND, ("a", "t1"), "again")),
        Wait(2 * SECOND),
        Reap(100, 0),
    ],
    "a long queue behind a limit without end": [
        *(take(f"first {number}", limit=1) for number in range(130)),
        *(take(f"second {number}", limit=1_000_000) for number in range(130)),
        Finish(0),
        Wait(OFFER),
        *(Follow(number, False) for number in range(8)),
        Ignore(9, True),
        take("the last", limit=1_000_000),
    ],
    "one finds a slot behind more than a step reads": [
        *(take(f"{number}", limit=1) for number in range(210)),
        take("the last", limit=1000),
    ],
    "rates, costs and an operator": [
        priced("a", 2),
        priced("b", 2),
        priced("c", 5),
        Wait(SECOND),
        Reap(9, 0),
        Give("one at a time", Hold("a", "t1", 10 * SECOND)),
        Give("one at a time", Charge("a", "t1", 3)),
        Finish(0),
        Give("one at a time", SetLimit(0, None, "ops", "429 again")),
        *(it for _ in range(3) for it in (Wait(10 * SECOND), Reap(9, 0))),
        Give("one at a time", SetLimit(3, 60 * SECOND)),
        Follow(-1, False),
        *(it for _ in range(7) for it in (Wait(10 * SECOND), Reap(9, 0))),
        priced("d", 1),
    ],
    "redelivered once, and parked again": [
        take("a"),
        take("b", kind="redelivered"),
        take("b"),
        Finish(0),
        Follow(0, False),
    ],
    "redelivered beside a run of what had finished": [
        *FINISHED,
        take("b"),
        take("b", kind="redelivered", token="t 2"),
    ],
    "a recovering run dies, and is left by a sweep, then recovered": [
        Take("one at a time", "a", "t1", 30 * SECOND, None, "fresh", b"one", at_once=True, recovers=True),
        Wait(30 * SECOND),
        take("b"),
        Reap(100, 0, recovers_until=0),
        Wait(SECOND),
        Reap(100, 0),
        Follow(0, False),
        Finish(1),
        Follow(1, False),
    ],
    "a recovering run is done, and so is one that was redelivered meanwhile": [
        Take("one at a time", "a", "t1", 30 * SECOND, None, "fresh", b"one", at_once=True, recovers=True),
        Finish(0),
        Take("one at a time", "b", "t1", 30 * SECOND, None, "fresh", b"one", at_once=True, recovers=True),
        Take("one at a time", "b", "t 2", 30 * SECOND, None, "redelivered", b"two"),
        Finish(0),
        take("b", kind="redelivered"),
    ],
    "a unique run ends its body, and is redelivered": [
        *begin_unique("a"),
        Finish(0, "if_no_copy"),
        take("a", kind="redelivered", token="t 2"),
        Finish(1),
    ],
    "a unique run ends its body while another waits": [
        *begin_unique("a"),
        take("b"),
        Finish(0, "if_no_copy"),
        Follow(0, False),
        Finish(1),
        Wait(OFFER),
        Reap(100, 0),
    ],
    "a unique run that was copied ends its body, and then its run": [
        *begin_unique("a"),
        take("a", kind="redelivered", token="t 2"),
        Finish(0, "if_no_copy"),
        Finish(0),
    ],
    "a unique run dies, is recovered, and ends its body late": [
        *begin_unique("a"),
        Wait(30 * SECOND),
        Give("one at a time", AcquireAlone("b", "t1", SECOND, None, "queued")),
        Reap(100, 0),
        Finish(0, "if_no_copy"),
        Follow(0, False),
        Finish(1, "if_no_copy"),
    ],
    "a unique run hands its lease over, and gets it back": [
        *begin_unique("a"),
        Give("one at a time", AcquireAlone("b", "t3", 86_400 * SECOND, ("a", "t1"), "again")),
        Give("one at a time", AcquireAlone("a", "t1", 30 * SECOND, ("b", "t3"))),
        Finish(0, "if_no_copy"),
    ],
    "a unique run hands its lease over, which ends": [
        *begin_unique("a"),
        Give("one at a time", AcquireAlone("b", "t3", 2 * SECOND, ("a", "t1"), "again")),
        Finish(0),
        Wait(2 * SECOND),
        Reap(100, 0),
        take("c"),
    ],
    "a unique run is asked for again with the same token, and gives its message back": [
        *begin_unique("a"),
        keep("a"),
        ComeAgain(0, 60 * SECOND),
        take("a", kind="redelivered", token="t 2"),
    ],
    "enqueued in order, and the first run dies": [
        *(Give("one at a time", Enqueue(id, b"one", 1)) for id in "abcb"),
        Take(
            "one at a time",
            "a",
            "t1",
            30 * SECOND,
            None,
            "promoted",
            b"one",
            recovers=True,
            order="published",
        ),
        Wait(30 * SECOND),
        Reap(100, 0),
        Follow(0, False),
        Finish(1),
        Follow(1, False),
        Give("one at a time", Enqueue("a", b"one", 1)),
        Give("one at a time", Enqueue("b", b"one", 1)),
    ],
    "a recovering run renews its lease after it has expired": [
        Take("one at a time", "a", "t1", 30 * SECOND, None, "fresh", b"one", at_once=True, recovers=True),
        take("b"),
        Wait(60 * SECOND),
        Keep((("one at a time", Renew("a", "t1", 30 * SECOND)),)),
        Reap(100, 0),
        Finish(0),
    ],
    "redelivered when the tombstone ends": [*FINISHED, Wait(TOMBSTONE), take("b", kind="redelivered")],
}
