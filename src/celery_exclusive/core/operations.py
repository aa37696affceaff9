"""What can be asked of a key, and what is answered. Durations are microseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take a place, or, with a `message`, wait in line for one.

    `promoted` is the epoch that the delivered message carries if it is the copy of an offer.
    """

    id: str
    token: str
    ttl: int
    limit: int = 1
    redelivered: bool = False
    promoted: str | None = None
    message: bytes | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Keep a lease for another `ttl`: never shortens it, never revives it."""

    id: str
    token: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give a place back. Unless `done`, the id may come again: its copy stays in line, no tombstone."""

    id: str
    token: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Remove:
    """Take an id out of the line: revoked, expired, or its final state is known."""

    id: str


@dataclass(frozen=True, slots=True)
class Reap:
    """Look at the clock: dead leases and offers that have run out."""


Operation = Acquire | Renew | Release | Remove | Reap


@dataclass(frozen=True, slots=True)
class Rival:
    """Who has a place: a holder, or an id to which one is offered (`age` 0). `age` is since the grant."""

    id: str
    age: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Granted:
    fence: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The message is in the line. `position` counts from 1."""

    position: int
    by: tuple[Rival, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """No place, and nothing was kept."""

    by: tuple[Rival, ...]


@dataclass(frozen=True, slots=True)
class Stale:
    """This delivery is over: an offer that somebody used, or a task that has finished."""


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to all other operations. `found` is false where there was nothing to change."""

    found: bool


Answer = Granted | Parked | Held | Stale | Done
