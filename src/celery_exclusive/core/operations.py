"""The operations on a key, and their answers. Durations are microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from celery_exclusive.core.records import NEVER, SECOND, OwnerPhase, Phase
from celery_exclusive.core.room import NO_LIMIT, Rates

Ending = Literal["done", "open", "if_no_copy"]
RemoveEnding = Literal["done", "open", "superseded", "aside"]
Order = Literal["published", "any"]
"""The order in which a key's tasks start. Without it they start as they arrive at the store."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire a lease, or, with a `message`, park it in line.

    * `promoted`: the epoch that a message carries if it was republished for an offer.
    * `acks_late`: its entry stays until the run is done.
    * `max_waiting`: a new message is not parked if so many wait. `at_once`: it is granted or refused.
    * `recovers`: the store keeps the message behind its run, and republishes it if the run dies.
    * `order`: "published" keeps the place in line if the run dies; "any" passes waiting tasks.
    * `takes_over`: an id with a phase, not "running". If it holds the key so, its lease and fence pass on.
    * `expires_in`: of the message in line. `gives_up_in`: a sweep ends the wait of a new message then.
    * `replaces`: a new message replaces those of this kind in line, and may be replaced.
    * `joins`: in line it keeps no new call from the key, which it would only end as another has.
    * `queue`: where the broker has the message, if that may be parked.
    * `cost`: the units that it holds of the limit, and takes of each rate.
    * `weight`, `part_limit`, `part_rates`: the terms of this `part`. Weight 0: it keeps those that it has.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1
    redelivered: bool = False
    promoted: str | None = None
    acks_late: bool = False
    message: bytes | None = None
    max_waiting: int | None = None
    takes_over: tuple[str, OwnerPhase] | None = None
    at_once: bool = False
    recovers: bool = False
    order: Order | None = None
    expires_in: int | None = None
    gives_up_in: int | None = None
    replaces: bool = False
    joins: bool = False
    queue: str = ""
    cost: int = 1
    rates: Rates = ()
    part: str = ""
    weight: int = 1
    part_limit: int = NO_LIMIT
    part_rates: Rates = ()

    @property
    def may_be_in_line(self) -> bool:
        """Whether the store may know this id from an earlier delivery of its message."""
        return self.redelivered or self.promoted is not None


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Join the line with a message that is about to be published.

    Applied(True): a slot is offered to the message, which has to be sent with the mark of an offer. Parked:
    the store has the message, and wakes it when a slot is free; the answer names no owner but one that stands
    for a key that is closed. Applied(False): the message was published before. A message that waits in line
    expires after `expires_in`. `gives_up_in`, `replaces`, `queue`, and what follows it, are as in `Acquire`.

    `waits`: the message opens a window in which it waits for newer calls: for `waits[0]` after the last one,
    and for `waits[1]` after the first. The same request replaces the message of its window, which then waits
    as long for another call. Held: another id has opened the window that is open now. A window has no
    deadline, since its recall could take a newer call along.
    """

    id: str
    message: bytes
    limit: int = 1
    expires_in: int | None = None
    gives_up_in: int | None = None
    replaces: bool = False
    waits: tuple[int, int] | None = None
    queue: str = ""
    cost: int = 1
    rates: Rates = ()
    part: str = ""
    weight: int = 1
    part_limit: int = NO_LIMIT
    part_rates: Rates = ()


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease with this token for another `ttl`, and never shorten it.

    An expired lease is revived if the store still has it, since no other request has ended it.
    """

    id: str
    token: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Release:
    """Release the lease of a run that has ended.

    * done: its copy leaves a tombstone, even if the lease ended before. open: the id may come again, and its
      copy stays.
    * if_no_copy: as done, but without a tombstone, since the result is not stored yet. If a copy may come,
      nothing is released before the end of the run. What the store keeps for this run is no copy.
    """

    id: str
    token: str
    ending: Ending = "done"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Leave the lease of a run that has ended to its message, which is delivered again.

    The id holds it for `ttl`, in the phase "again". It is released if the message is over, or if the store
    has a copy, which joins the line.
    """

    id: str
    token: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an id from the line.

    done: the task was revoked, has expired or has finished. open: the task has begun elsewhere, and may come
    again if the broker redelivers it. superseded: another message replaces this one, so later copies of it
    are obsolete, too. aside: this process may not publish its message, which steps aside and stays.
    Applied(False): it was aside before, or has begun.
    """

    id: str
    ending: RemoveEnding = "done"


@dataclass(frozen=True, slots=True)
class Recall:
    """Publish the message of a revoked task out of turn, so that a worker ends it.

    A worker that has not heard of the revocation leaves the task at its place in line.
    """

    id: str


@dataclass(frozen=True, slots=True)
class StandBehind:
    """Wait behind a message without a place: for the call that the message's unique key refuses.

    As behind any task that waits, a long first offer is shortened, since its message may be lost.
    Applied(True): the wait of the message is over, and its body will not begin.
    """

    id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a task that waits, for an operator. A task that runs keeps the copy of its message.

    Applied(True): the message has left the line, by this request or by an earlier one with this token. No
    later copy of it begins. The line goes on with the next sweep, not in this step: the next tasks in line
    may be dropped, too.
    """

    id: str
    token: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give up a call whose publisher got no answer: a request of it that arrives later acquires nothing.

    Applied(False): the call was sent, and keeps its key. With `releases` a call that was not sent releases
    its key, too.
    """

    id: str
    releases: bool = False


@dataclass(frozen=True, slots=True)
class ForceRelease:
    """Release the lease of this id without its token, as an operator may.

    The copy behind the run joins the line if only the store has it, or if the lease has expired. If the
    broker has the message, too, and the lease lives, the copy is removed: the body may still run. Without
    such a lease the operation only ends expired leases and offers.
    """

    id: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore a lease that the store has lost with its data, if a slot is free.

    The lease gets a new fence, above the one that the holder knows. An id that was parked or has finished
    since gets no lease. Its start counts once more: the log of the starts is lost, too.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1
    cost: int = 1
    rates: Rates = ()
    part: str = ""
    weight: int = 1
    part_limit: int = NO_LIMIT
    part_rates: Rates = ()


@dataclass(frozen=True, slots=True)
class AcquireAlone:
    """Acquire a key alone, for exactly `ttl` from now on, also if this id holds it already.

    The lease then belongs to this token. If the id runs under another token, the answer is Held. Stale: the
    message was sent before, and its id has no lease any more.

    * `inherits`: an id with its token. If it holds the key, its lease, with its fence, passes to this id. The
      store drops the message that it kept for that run, since the broker has it, too.
    * `sends`: a new lease and the sending of its message are one step.
    * `repeated`: an earlier request to send the message may still arrive. If this one is refused, the earlier
      one gets no lease either.
    """

    id: str
    token: str
    ttl: int
    inherits: tuple[str, str] | None = None
    phase: Phase = "running"
    sends: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Override the limit of a key, or of a part, for as long as it `lasts`; 0: no task starts.

    None: the limit of the code counts again. Applied(False): it did so already.
    """

    id: ClassVar[str] = ""
    limit: int | None = None
    lasts: int | None = None
    by: str = ""
    reason: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Start no task of a key, or of a part, for as long as it `lasts`; 0 ends all holds.

    An earlier hold that ends later stays. `id`, `token`: a run that holds the key. Without an id an operator
    asks.
    """

    id: str
    token: str
    lasts: int
    part: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """Count more units of a run at the rates of its key and part. Applied(False): the run lost its key."""

    id: str
    token: str
    units: int


@dataclass(frozen=True, slots=True)
class Reap:
    """End expired leases and offers. After `recovers_until` leases with a copy of their message stay."""

    id: ClassVar[str] = ""
    recovers_until: int = NEVER


def is_done_if_repeated(operation: object) -> bool:
    """Whether a repetition that finds nothing to change proves that the first request was executed.

    A release with "if_no_copy" proves nothing: a copy may have refused it both times.
    """
    if isinstance(operation, ForceRelease):
        return bool(operation.id)
    return isinstance(operation, Requeue) or (
        isinstance(operation, Release) and operation.ending != "if_no_copy"
    )


KeyOperation = (
    Acquire
    | AcquireAlone
    | Enqueue
    | Release
    | Requeue
    | Remove
    | Recall
    | StandBehind
    | Drop
    | GiveUp
    | ForceRelease
    | Restore
    | SetLimit
    | Hold
    | Charge
)
"""The operations on one key, besides renewals."""
Operation = KeyOperation | Renew | Reap


def ids_of(operation: Operation) -> tuple[str, ...]:
    """Return the ids whose leases the operation reads, its own id first."""
    if isinstance(operation, Acquire) and operation.takes_over:
        return operation.id, operation.takes_over[0]
    if isinstance(operation, AcquireAlone) and operation.inherits:
        return operation.id, operation.inherits[0]
    return (operation.id,) if operation.id else ()


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a key: a holder, or an id with an offer and no lease. `age`: the time since the grant.

    The owner of a key that is closed has no id, and the phase says by what: a rate, an operator's pause, a
    hold, or the limit of a part; `remaining` is the time until it may open, `NEVER` if that is not known.
    """

    id: str
    age: int
    remaining: int
    fence: int = 0
    phase: OwnerPhase = "running"
    token: str = ""

    @property
    def is_closed(self) -> bool:
        return self.phase in ("rate", "paused", "hold", "part")

    @property
    def opens_in(self) -> float | None:
        """The seconds until a closed key may open. None: that is not known, or it is not closed."""
        return self.remaining / SECOND if self.is_closed and self.remaining < NEVER else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task in line, as stores show it. `age`: the time since it joined the line.

    * `not_before`: the time until its window closes. `ends_in`: until it gives up or expires; None: never.
    * `offers`: a message that was published with its place has five from the start.
    * `is_aside`: out of the line, since no worker accepted its offers, or since its wait is `over`: by its
      deadline (""), or for the newer message with this id. A worker ends its task then.
    * `is_shut`: it waits for room of its part, and is not in line yet.
    * `is_replaceable`: a newer call takes its place, see `Acquire.replaces`.
    """

    id: str
    age: int
    is_offered: bool = False
    not_before: int | None = None
    ends_in: int | None = None
    offers: int = 0
    deaths: int = 0
    gives_up: bool = False
    is_aside: bool = False
    over: str | None = None
    part: str = ""
    cost: int = 1
    is_shut: bool = False
    is_replaceable: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """The id has the lease. `after`: the id whose run has ended before, while this one waited in line."""

    fence: int
    after: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """The store has the message. `position` in line counts from 1; 0: behind its own run.

    A task that comes again deep in a line may get a smaller one, see `Line.ahead`, and a new task of a line
    with parts a greater one. `by` names at most ten owners, the operation's id among them if it is one;
    `others` is the number of the rest. Of a key that is closed the first owner has no id.
    """

    position: int
    by: tuple[Owner, ...]
    others: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """No slot is free, and nothing was stored. Owners as in `Parked`: to `Acquire` at least one."""

    by: tuple[Owner, ...]
    others: int = 0

    @property
    def names_no_owner(self) -> bool:
        """Whether the key has no other owner: a copy of this very message waits, or its call was given up."""
        return not self.by


@dataclass(frozen=True, slots=True)
class Full:
    """No slot is free, and `max_waiting` tasks wait already: nothing was stored."""

    waiting: int
    by: tuple[Owner, ...]
    others: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """The wait in line is over, and this delivery ends its task without its body.

    `newer`: the id of the message that has replaced it; "": its deadline has come. Owners as in `Parked`.
    """

    newer: str
    by: tuple[Owner, ...]
    others: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """The delivery is obsolete, since its id runs already or has finished."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to all other operations. `is_applied` is false if there was nothing to change."""

    is_applied: bool


Answer = Granted | Parked | Held | Full | Over | Stale | Applied
