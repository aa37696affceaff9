"""The calls of a history, as each client writes them to a file of its own: one line for each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from celery_exclusive.core import operations
from celery_exclusive.core.operations import Applied, KeyOperation, Reap, Renew
from celery_exclusive.stores import base
from celery_exclusive.stores.base import Reply, Snapshot

NOT_DONE = "not done"
"""The reply to a call that is no part of the history, though it may have locked a key for a while."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a key, which changes nothing."""

    id: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """The server has lost data: all of them, or those that its replica did not have."""

    id: ClassVar[str] = ""
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """A server that has lost data gets a new epoch, as soon as a process that knows them connects."""

    id: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The tombstone of a call on memcached. Other calls may see it before all else that the call changes."""

    of: KeyOperation

    @property
    def id(self) -> str:
        return self.of.id


@dataclass(frozen=True, slots=True)
class Keep:
    """The renewals of several leases in one request. The history has a call of each of them."""

    id: ClassVar[str] = ""
    leases: tuple[tuple[str, Renew], ...]


Asked = KeyOperation | Renew | Reap | Look | Keep | Loss | NewEpoch | Tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operation on one key, by one client.

    * `begin`, `end`: by the monotonic clock of the machine, in microseconds. Without an `end` there is no
      answer: the operation may have been done at any time after its begin, or never.
    * `last`: of a call without an answer: when its client gave it up; in a search the instant by which it was
      done, if it was. None: it may be done at any time.
    * `since`, `until`: the same instants by the wall clock, which is the clock of each store here.
    * `nows`: the instants by the store's clock at which the step may have been done, if they are known.
    * `reply`: what the store answered; the text of its error; "" is the answer of no store. `NOT_DONE`: the
      store says that it has not done the operation.
    * `has_connected`: a connection was opened meanwhile, so the request may have been sent twice.
    * `may_skip`: a sweep that need not look at the key, since another call may have locked it.
    * `sent`: how many messages the call has pushed onto the list of its round. None: not known.
    """

    client: int
    key: str
    operation: Asked
    begin: int
    since: int
    end: int | None = None
    last: int | None = None
    until: int = 0
    nows: tuple[int, ...] = ()
    reply: Reply | Snapshot | Sequence[bool | None] | str = ""
    has_connected: bool = False
    may_skip: bool = False
    sent: int | None = None

    @property
    def is_answered(self) -> bool:
        return self.end is not None

    @property
    def is_loss(self) -> bool:
        return isinstance(self.operation, Loss)

    @property
    def parts(self) -> list[Call]:
        """The call, or a call of each lease that it renews: without an answer where that is not known."""
        if not isinstance(self.operation, Keep):
            return [self]
        leases, reply = self.operation.leases, self.reply
        if isinstance(reply, str):
            return [replace(self, key=key, operation=renew) for key, renew in leases]
        unknown = replace(self, end=None, last=self.end, until=0, reply="")
        return [
            replace(unknown, key=key, operation=renew)
            if it is None
            else replace(self, key=key, operation=renew, reply=Reply(Applied(it)))
            for (key, renew), it in zip(leases, reply, strict=True)
        ]

    def of(self, key: str) -> Call:
        """The part of a sweep that concerns one key."""
        if not isinstance(self.reply, Reply):
            return replace(self, key=key)
        wake = tuple(each for each in self.reply.wake if each.key == key)
        aside = tuple(each for each in self.reply.aside if each[0] == key)
        return replace(self, key=key, reply=replace(self.reply, wake=wake, aside=aside))


_NAMES = {**vars(operations), **vars(base), **globals()}


def write(path: Path, calls: Iterable[Call]) -> None:
    path.write_text("".join(f"{call!r}\n" for call in calls))


def read(folder: Path) -> list[Call]:
    """Read the files of all clients."""
    lines = [line for path in sorted(folder.glob("*.calls")) for line in path.read_text().splitlines()]
    return [eval(line, _NAMES) for line in lines]  # its own files


def shown(value: Any) -> str:
    """An operation or an answer, without the fields that have their defaults."""
    if isinstance(value, tuple) and value:
        return f"({', '.join(map(shown, value))},)"
    if not is_dataclass(value):
        return repr(value)
    given = ((field, getattr(value, field.name)) for field in fields(value))
    texts = [f"{field.name}={shown(it)}" for field, it in given if it != field.default]
    return f"{type(value).__name__}({', '.join(texts)})"
