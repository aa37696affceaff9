"""The parts of a world: messages, deliveries, callers, and what has become of each message.

All of them are tuples without the numbers that do not matter, so that worlds that are alike are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from celery_exclusive.core.claim import UniqueUntil, task_id
from celery_exclusive.core.operations import Held
from tests.explorer.messages.store import NOBODY, Store

Publication = Literal[
    "call", "member", "retry", "retry elsewhere", "replacement", "step", "inner", "inner member"
]
"""How a message is published. A `retry elsewhere` has other arguments, hence another key. A `step` is the
next one of a chain, which the end of a task publishes. An `inner` call is made by a body with its own key."""
Phase = Literal[
    "admit",
    "join",
    "revoked",
    "body",
    "keep",
    "publish",
    "send",
    "undo",
    "over",
    "store",
    "leave",
    "again",
    "return",
    "ack",
    "owed",
]
"""What a delivery does next: ask for its keys, read the result of another task, be discarded, run, leave its
lock to its retry, ask for the key of what it publishes, send that, give its key back, end its body, store its
result, release its own keys, publish itself again, go back to its broker, be acknowledged. What is `owed` is
released by the main process, since the child is dead."""


LOST = "lost"
"""The result of a task that has ended without the end of its body."""


class Message(NamedTuple):
    """The header of a message. `number` stands for its publish id, `follows` is the id of a run.

    `keeps_lock`: its run may have left the lock to it, its retry. `superseded_by`: the task for which it does
    not run, a retry.
    `parent` is the task whose end, or whose own body, has published it. `is_awaited`: a member of a canvas.
    """

    task: str
    number: int
    key: str
    duplicate_of: str = ""
    parent: str = ""
    is_retry: bool = False
    is_acquired: bool = True
    follows: str = ""
    is_awaited: bool = False
    keeps_lock: bool = False
    superseded_by: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether it continues a run."""
        return self.is_retry or bool(self.parent or self.follows)

    @property
    def id(self) -> str:
        return f"{self.task}/{self.number}"


class Copy(NamedTuple):
    """A message in the broker, or in line: `promoted` is the epoch and `offered` the key of its offer.

    `is_hidden`: the broker hides it until its visibility timeout is over, for too long to wait for it.
    """

    message: Message
    is_redelivered: bool = False
    promoted: str | None = None
    offered: str = ""
    is_hidden: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it is known to continue a run."""
        return self.message.goes_on or self.is_redelivered or bool(self.promoted)

    def as_duplicate_of(self, task: str) -> Copy:
        return self._replace(message=self.message._replace(duplicate_of=task))

    @property
    def is_back(self) -> bool:
        """Whether it says that there was an earlier delivery."""
        return self.is_redelivered or self.promoted is not None

    def __str__(self) -> str:
        kinds = ["redelivered"] * self.is_redelivered
        kinds += [f"promoted for {self.offered}" if self.promoted else "again"] * (self.promoted is not None)
        return f"{self.message.id} ({', '.join(kinds) or 'fresh'})"


class Slot(NamedTuple):
    """A delivery at a worker, with the answers that the plan which it runs now has got.

    `is_acked`: the broker has delivered it again already, or never will. `is_paused`: one of its leases may
    be gone. `may_be_late`: its request may have come late, so the next one counts as a redelivered copy's.
    `has_failed`: the store has not answered a request of this plan. `is_anew`: it was granted a key, and has
    asked for its keys anew since.
    `holds`, `has_lock`: its end has to release the unique key, the lock. `has_body`: its body was admitted.
    `ends_wait`: it ends without its body, since its wait is over.
    `next` is what it publishes, and `next_holds` that this may hold its key. Unless it
    `is_done`, its message comes again. `hand_over` is the id of the retry to which it leaves its lock, and
    under which it holds the lock if it `is_handed_over`; `has_retried`: that was sent. `is_discarded`: it was
    revoked.
    `forgotten` are the keys that the store has forgotten. `has_looked`: for the result of the task that it
    duplicates. `after`: the task whose result it reads. `result`: the task whose body has made its own.
    """

    copy: Copy
    token: int
    phase: Phase = "admit"
    answers: tuple[object, ...] = ()
    is_acked: bool = False
    is_paused: bool = False
    may_be_late: bool = False
    has_failed: bool = False
    is_anew: bool = False
    holds: bool = False
    has_lock: bool = False
    has_body: bool = False
    ends_wait: bool = False
    next: tuple[Publication, Message] | None = None
    next_holds: bool = False
    is_done: bool = True
    hand_over: str = ""
    is_handed_over: bool = False
    has_retried: bool = False
    is_discarded: bool = False
    forgotten: tuple[str, ...] = ()
    has_looked: bool = False
    after: str = ""
    result: str = ""

    @property
    def id(self) -> str:
        return self.copy.message.id

    @property
    def is_alive(self) -> bool:
        return self.phase != "owed"

    @property
    def given_up(self) -> Slot:
        """Return this delivery after its execution, while its worker owes the leases that it may have."""
        given_up = Slot(self.copy, self.token, "owed", is_acked=self.is_acked, is_done=self.is_done)
        return given_up._replace(hand_over=self.hand_over, is_handed_over=self.is_handed_over)

    def with_tokens(self, tokens: dict[int, int]) -> Slot:
        answers = tuple([_renamed(answer, tokens) for answer in self.answers])
        if tokens[self.token] == self.token and answers == self.answers:
            return self
        return self._replace(token=tokens[self.token], answers=answers)


def _renamed(answer: object, tokens: dict[int, int]) -> object:
    if not isinstance(answer, Held) or not any(owner.token for owner in answer.by):
        return answer
    names = [str(tokens.get(int(owner.token), NOBODY)) for owner in answer.by]
    return Held(tuple(replace(owner, token=name) for owner, name in zip(answer.by, names, strict=True)))


class Caller(NamedTuple):
    """A process that publishes a message: it asks for the key, sends, or gives the key back.

    What is "late" is a request alone, which has no answer and is still on its way. `is_repeated`: so was the
    last one of this caller, or its answer was lost.
    """

    how: Publication
    message: Message
    phase: Literal["idle", "send", "undo", "owe", "late"] = "idle"
    holds: bool = False
    is_repeated: bool = False


class Fate(NamedTuple):
    """The fate of one message, which no part of the system knows as a whole.

    `is_owed`: it was sent and has not ended. `has_begun`: its body has. `has_waited`: it was parked.
    `was_admitted`: it was parked, has begun, or is a retry. `is_excused`: a fault has happened after which
    plain Celery may run it again, or a lease may expire. `is_closed`: it has finished, and copies of it have
    come back. `is_overtaken`: the broker has delivered it again before its first delivery was admitted, and
    neither the store nor plain Celery can tell this delivery from one of a message that was never admitted.
    `is_given_up`: a worker has announced that it was revoked or has failed, while another one may still
    have a delivery of it. `has_no_key`: it was sent without its key, or could not keep it, or has lost it to
    a task that was admitted before. `has_handed_over`: its retry or replacement has its key, and until
    that begins nothing holds its copies back, as docs/evidence/rare-cases.md says.
    `keeps_lock`: its run has left it the lock, and it has not begun.
    `is_sent`: its publisher has sent it. `is_unsent`: its publisher was told that it is not sent, and will
    not be. `is_over`: a worker has ended it without its body, since its wait in line was over. `waits_for`:
    the tasks as one of which it is to end, and not run. `result`: the task whose body has made its stored
    result, or `LOST`. `ended_before`: the tasks whose results are too old for it.
    """

    is_owed: bool = True
    has_begun: bool = False
    was_admitted: bool = False
    has_waited: bool = False
    is_excused: bool = False
    is_closed: bool = False
    is_overtaken: bool = False
    is_given_up: bool = False
    has_no_key: bool = False
    has_handed_over: bool = False
    keeps_lock: bool = False
    is_sent: bool = False
    is_unsent: bool = False
    is_over: bool = False
    waits_for: tuple[str, ...] = ()
    result: str = ""
    ended_before: tuple[str, ...] = ()


class Budget(NamedTuple):
    """How often each thing may happen.

    `crashes`: a worker or a publisher dies. `kills`: a child dies and its worker ends the task.
    `lost_children`: a child dies and the message goes back. `rejects`: a body gives its message back.
    `repeats`: the broker delivers a message again though its worker lives, because of a lost connection or
    the visibility timeout. `revocations`: a worker discards a message. `pauses`, `backlogs`: a lease expires
    though its owner lives, or its message is queued. `slow`: an offer expires though its copy is underway.
    `refusals`: a message cannot be sent. `interruptions`: it was sent, and its call fails all the same.
    `outages`: the store does not answer until what a delivery was granted has expired. `forgets`: the store
    loses all its data. The others are what bodies may publish.
    """

    crashes: int = 0
    kills: int = 0
    lost_children: int = 0
    rejects: int = 0
    repeats: int = 0
    revocations: int = 0
    pauses: int = 0
    backlogs: int = 0
    slow: int = 0
    lost_replies: int = 0
    outages: int = 0
    refusals: int = 0
    interruptions: int = 0
    forgets: int = 0
    retries: int = 0
    retries_elsewhere: int = 0
    replacements: int = 0
    steps: int = 0
    inner: int = 0
    inner_members: int = 0


_NOTHING = Budget()
_UNKNOWN = Fate(is_owed=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of the world. `calls` has a letter for each call: capitals are members of a canvas.

    A call has the key `u`, or if its letter is followed by `'` the key `v`. One letter twice: two calls with
    one task id, which their callers have chosen. `late`: messages are acknowledged late. `sends`: the step
    that grants a call its key sends its message, too. `flags`: the broker says of a message that it delivers
    it again. `recovers`: the store keeps the message of a run, and the broker hides the message of a dead
    one. `keeps`: a retry keeps the lock of its run. `gives_up`: messages that wait for the lock give up.
    `last_chances`: all that the store has published may only run one at a time. `joins`: duplicates that are
    members wait for the task with their key, and end as that has.
    """

    name: str = field(compare=False)
    calls: str = "ab"
    workers: int = 2
    until: UniqueUntil = "finished"
    exclusive: bool = False
    on_conflict: str = "wait"
    late: bool = True
    sends: bool = False
    flags: bool = True
    recovers: bool = False
    keeps: bool = False
    gives_up: bool = False
    last_chances: bool = False
    joins: bool = False
    budget: Budget = _NOTHING


class World(NamedTuple):
    store: Store
    queue: tuple[Copy, ...]
    slots: tuple[Slot, ...]
    callers: tuple[Caller, ...]
    fates: tuple[tuple[str, Fate], ...]
    budget: Budget

    @property
    def is_done(self) -> bool:
        """Whether every message has ended, and nothing is left of any."""
        queue = [copy for copy in self.queue if not copy.is_hidden]
        return not (queue or self.slots or self.callers or self.owed) and self.store.is_empty

    @property
    def owed(self) -> list[str]:
        return [id for id, fate in self.fates if fate.is_owed]

    @property
    def unfinished(self) -> str:
        """Return the report about a world from which no way leads to the end."""
        return f"not all ends well any more (owed: {', '.join(self.owed) or 'nothing'})"

    def fate(self, id: str) -> Fate:
        return dict(self.fates).get(id, _UNKNOWN)

    def mark(self, id: str, **changes: Any) -> World:
        fates = {**dict(self.fates), id: self.fate(id)._replace(**changes)}
        return self._replace(fates=tuple(sorted(fates.items())))

    def result_of(self, task: str) -> str:
        """Return the task whose body has made the stored result of this one; "": there is none."""
        return next((fate.result for id, fate in self.fates if task_id(id) == task and fate.result), "")

    def may(self, what: str) -> bool:
        return bool(getattr(self.budget, what))

    def spend(self, what: str) -> World:
        left = getattr(self.budget, what) - 1
        return self._replace(budget=self.budget._replace(**{what: left}))

    def put(self, slot: Slot, instead: Slot | None) -> World:
        """The world in which this delivery has changed; None: it is over."""
        slots = list(self.slots)
        slots.remove(slot)
        return self._replace(slots=(*slots, instead) if instead else tuple(slots))

    def put_caller(self, caller: Caller, instead: Caller | None) -> World:
        callers = list(self.callers)
        callers.remove(caller)
        return self._replace(callers=(*callers, instead) if instead else tuple(callers))

    def send(self, *copies: Copy) -> World:
        return self._replace(queue=(*self.queue, *copies))

    def settled(self) -> World:
        """Return this world in the common form of all equal worlds, with tokens counted anew."""
        slots = sorted(self.slots, key=lambda slot: _order(slot, self.store.keys_of(slot.token)))
        tokens = {slot.token: number for number, slot in enumerate(slots, 1)}
        return World(
            self.store.with_tokens(tokens),
            tuple(sorted(self.queue, key=repr)) if len(self.queue) > 1 else self.queue,
            tuple([slot.with_tokens(tokens) for slot in slots]),
            tuple(sorted(self.callers)),
            self.fates,
            self.budget,
        )

    def __str__(self) -> str:
        parts = {
            "queue": [str(copy) for copy in self.queue],
            "workers": [f"{slot.copy} {slot.phase}" for slot in self.slots],
            "callers": [f"{caller.message.id} {caller.phase}" for caller in self.callers],
            "owed": self.owed,
        }
        shown = ", ".join(f"{name}: {' + '.join(values) or '-'}" for name, values in parts.items())
        return f"{self.store}, {shown}"


@lru_cache(maxsize=100_000)
def _order(slot: Slot, keys: tuple[str, ...]) -> str:
    return f"{slot._replace(token=0)!r} {keys}"


class Move(NamedTuple):
    """One thing that may happen next. What depends on a fault or on bad luck is no way to get on."""

    label: str
    world: World
    is_progress: bool = True
