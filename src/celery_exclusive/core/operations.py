"""The operations on a key, and their answers. Durations are microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_exclusive.core.records import NEVER, OwnerPhase, Phase

Ending = Literal["done", "open", "if_no_copy"]
RemoveEnding = Literal["done", "open", "superseded"]
Order = Literal["published", "any"]
"""How a key's tasks start, unless in the order in which they arrive at the store."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire a lease, or, with a `message`, park it in line.

    `promoted` is the epoch that a message carries if it was republished for an offer. `acks_late`: the
    message is acknowledged after the run, so its entry stays until the run is done. A new message is not
    parked if `max_waiting` tasks wait already, and never if it asks to be granted `at_once`. If it
    `recovers`, its message is kept behind its run, too, until that is done, and republished if the run dies.
    `order`: "published" keeps its place in line if its run dies; "any" passes those who wait.
    `takes_over` is an id with a phase, not "running": if it holds the key in this phase, its lease, with its
    fence, goes over to this id. A message that waits in line expires after `expires_in`.
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

    @property
    def may_be_in_line(self) -> bool:
        """Whether the store may know this id from an earlier delivery of its message."""
        return self.redelivered or self.promoted is not None


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Take a place in line for a message that is about to be published.

    Applied(True): it is its turn, and the message has to be sent with the mark of an offer. Parked: the
    store has the message, and publishes it when it is its turn. Applied(False): it has published it already.
    A message that waits in line expires after `expires_in`.
    """

    id: str
    message: bytes
    limit: int = 1
    expires_in: int | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease with this token for another `ttl`; never shorten it.

    One that has expired is revived if the store still has it: nobody has asked for its key since.
    """

    id: str
    token: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Release:
    """Release a lease, as its run has ended.

    done: for good; a copy is removed, even if the lease has ended before, and leaves a tombstone. open: the
    id may come again, and its copy stays. if_no_copy: for good if no copy of the message may come again, and
    without a tombstone, since its result is not stored yet; else nothing is released, and the end of the run
    decides about the copy. A message that the run itself has kept is no copy.
    """

    id: str
    token: str
    ending: Ending = "done"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Leave a lease to the message of a run that has ended, since it is delivered again.

    Its id holds the lease for `ttl`, in the phase "again". If a copy of it is here, that waits for its turn,
    and the lease is released.
    """

    id: str
    token: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an id from the line.

    done: its task was revoked, has expired or has finished. open: it has begun elsewhere, and may come again
    if the broker redelivers it. superseded: another message replaces it, so copies of it that come
    later are obsolete, too.
    """

    id: str
    ending: RemoveEnding = "done"


@dataclass(frozen=True, slots=True)
class Recall:
    """Publish the message of an id that waits in line, out of turn: a worker ends it, as it was revoked.

    A worker that does not know of this leaves it in line, at its place.
    """

    id: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give a call up whose publisher got no answer: if its request arrives after this, it acquires nothing.

    Applied(False): it was sent, and keeps its key. Else `releases` says that the key is released.
    """

    id: str
    releases: bool = False


@dataclass(frozen=True, slots=True)
class ForceRelease:
    """Release the lease of this id without its token, as an operator may.

    A copy that only the store has joins the line, and so does that of a run whose lease has expired; one that
    the broker has, too, leaves: its body may live.
    Without such a lease it only ends expired leases and offers.
    """

    id: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore a lease that the store has lost with its data, if a slot is free.

    It gets a new fence, above the one that the holder knows. An id that was parked or has finished since gets
    no lease.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1


@dataclass(frozen=True, slots=True)
class AcquireAlone:
    """Acquire a key alone, for exactly `ttl` from now on, also if this id holds it already.

    The lease belongs to this token then. If it runs under another token, the answer is that it is held.
    `inherits` is an id with its token: if it holds the key, its lease, with its fence, goes over to this id.
    A message that its run has kept leaves the store: the broker has it, too.
    `sends`: if the lease is a new one, its message is sent in the same step. Stale: the message was sent
    before, and its id has no lease any more. `repeated`: an earlier request to send it may still arrive; if
    this one is refused, that gets no lease either.
    """

    id: str
    token: str
    ttl: int
    inherits: tuple[str, str] | None = None
    phase: Phase = "running"
    sends: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Reap:
    """End expired leases and offers, those with a copy of their message not after `recovers_until`."""

    recovers_until: int = NEVER


def is_done_if_repeated(operation: object) -> bool:
    """Whether a repetition that finds nothing to change means that the first request has done it.

    A release that is to leave copies alone may have been refused for their sake, both times.
    """
    if isinstance(operation, ForceRelease):
        return bool(operation.id)
    return isinstance(operation, Requeue) or (
        isinstance(operation, Release) and operation.ending != "if_no_copy"
    )


KeyOperation = (
    Acquire | AcquireAlone | Enqueue | Release | Requeue | Remove | Recall | GiveUp | ForceRelease | Restore
)
"""The operations on one key, besides renewals."""
Operation = KeyOperation | Renew | Reap


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner of a key: a holder, or an id with an offer. `age` is the time since the grant."""

    id: str
    age: int
    remaining: int
    fence: int = 0
    phase: OwnerPhase = "running"
    token: str = ""

    @property
    def is_offered(self) -> bool:
        """Whether it has no lease yet, and so neither fence nor token."""
        return self.phase == "offered"


@dataclass(frozen=True, slots=True)
class Granted:
    fence: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The message is stored. `position` in line counts from 1; 0: behind its own run."""

    position: int
    by: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """No slot is free, and nothing was stored.

    The answer to `Acquire` names at least one owner: a holder, or the task to which the slot is offered.
    """

    by: tuple[Owner, ...]

    @property
    def names_no_owner(self) -> bool:
        """Whether no other owner has the key: a copy of this very message waits, or its call was given up."""
        return not self.by


@dataclass(frozen=True, slots=True)
class Full:
    """No slot is free, and `max_waiting` tasks wait already: nothing was stored."""

    waiting: int
    by: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Stale:
    """This delivery is obsolete: its id runs already, or has finished."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to all other operations. `is_applied` is false if there was nothing to change."""

    is_applied: bool


Answer = Granted | Parked | Held | Full | Stale | Applied
