"""What can be asked of a key, and what is answered. Durations are microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from celery_exclusive.core.document import Phase


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take a place, or, with a `message`, wait in line for one.

    `promoted` is the epoch that the delivered message carries if it is the copy of an offer. `late` says that
    the message is acknowledged after the run, so its entry stays until that is done. With `max_waiting` a
    newcomer is not parked behind so many.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1
    redelivered: bool = False
    promoted: str | None = None
    late: bool = False
    message: bytes | None = None
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Keep a lease for another `ttl`: never shortens it, never revives it.

    `phase` is that of a unique lease from now on; None leaves it as it is, and is for who has it by this very
    token. Without a token it is that of whichever delivery has it.
    """

    id: str
    token: str | None
    ttl: int
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a place back. Unless `done`, the id may come again: its copy stays in line, no tombstone.

    What is `done` takes its waiting copy along even if its lease has ended before. What is not, and `alone`,
    keeps its lease if a copy of its message is known of, whose fate the end of the run decides. With `keep`
    the message comes again: unless a copy of it is here, which does, the id keeps the place for so long. At
    most one of the three is given.
    """

    id: str
    token: str
    done: bool = True
    alone: bool = False
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """Take an id out of the line: revoked, expired, or its final state is known.

    Unless `done`, it has begun elsewhere, and may come again if the broker redelivers it.
    """

    id: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Break:
    """Take the place of whoever holds it under this id, as an operator may. Its copy stays in line.

    Where nobody does, it only looks at the clock.
    """

    id: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Put back a lease that the store has lost with all its data, if there still is a place.

    It has a new fence, above that which the holder knows. Who was parked or has finished since gets none.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Own:
    """Have a key alone, from now on for `ttl`, no longer and no shorter, also if this id has it already.

    It is this token's then. `former` is an id and its token: if that has the key, it gives it up, and its
    lease, with its fence, is this id's.
    """

    id: str
    token: str
    ttl: int
    former: tuple[str, str] | None = None
    phase: Phase = "running"


@dataclass(frozen=True, slots=True)
class Reap:
    """Look at the clock: dead leases and offers that have run out."""


Request = Acquire | Own | Release | Remove | Break | Restore
"""What can be asked of one key, besides renewals."""
Operation = Request | Renew | Reap


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has a place: a holder, or an id to which one is offered (`fence` 0).

    `age` is since the grant.
    """

    id: str
    age: int
    remaining: int
    fence: int = 0
    phase: Phase = "running"


@dataclass(frozen=True, slots=True)
class Granted:
    fence: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The message is kept. `position` in line counts from 1; 0: behind its own run."""

    position: int
    by: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """No place, and nothing was kept."""

    by: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Full:
    """No place, and as many wait as may: nothing was kept."""

    waiting: int
    by: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class Stale:
    """This delivery is over: its id runs already, or has finished."""


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to all other operations. `found` is false where there was nothing to change."""

    found: bool


Answer = Granted | Parked | Held | Full | Stale | Done
