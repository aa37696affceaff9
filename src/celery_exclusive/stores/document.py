"""A store made of three things: load a document, swap it if nobody else did, list what is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from celery_exclusive.core.document import Document, Entry, Line
from celery_exclusive.core.operations import Acquire, Done, Operation, Reap, Renew, Request
from celery_exclusive.core.state import owner
from celery_exclusive.core.step import Transition, step
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Capabilities, Reply, Snapshot, Wake


@dataclass(frozen=True, slots=True)
class Loaded:
    """A key as it stood at the instant `now` of the store's clock; `version` changes with every swap.

    `aside` counts all who stepped aside, of which the line has only some. A store that tells the `due`
    time which it keeps need not swap what changes nothing.
    """

    version: int
    now: int
    document: Document
    line: Line
    aside: int = 0
    due: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a swap must store: the transition of what was loaded, and the operation's id and message."""

    loaded: Loaded
    transition: Transition
    id: str
    message: bytes | None
    tombstone_until: int

    @property
    def is_none(self) -> bool:
        """Whether everything stays as it was loaded."""
        to, was = self.transition, self.loaded
        is_same = to.document == was.document and to.due == was.due
        return is_same and not (
            to.entries or to.removed or to.tombstone is not None or self.message is not None
        )

    @property
    def known(self) -> dict[str, Entry]:
        """The entries that were loaded: all that can be changed or removed."""
        line = self.loaded.line
        own = (line.own,) if line.own else ()
        return {entry.id: entry for entry in (*line.head, *line.aside, *line.behind, *own)}

    def counts(self) -> tuple[int, int, int]:
        """How many will wait in line, how many aside, and how many copies stand behind their runs."""
        known, to, line = self.known, self.transition, self.loaded.line
        left = [known[id].state for id in {*to.removed, *(entry.id for entry in to.entries)} if id in known]
        came = [entry.state for entry in to.entries]
        return (
            line.waiting + came.count("waiting") - left.count("waiting"),
            self.loaded.aside + came.count("aside") - left.count("aside"),
            len(line.behind) + came.count("behind") - left.count("behind"),
        )


def sweep(keys: Sequence[str] | None, limit: int, look_at: Callable[[str], Reply], epoch: str) -> Reply:
    """Look at these keys, one by one; None: it is somebody else's turn."""
    replies = [look_at(key) for key in keys or ()]
    return Reply(
        Done(keys is not None),
        tuple(wake for reply in replies for wake in reply.wake),
        tuple(aside for reply in replies for aside in reply.aside),
        epoch,
        more=0 < limit <= len(replies),
        unreadable=tuple(pair for reply in replies for pair in reply.unreadable),
    )


class DocumentStore(ABC):
    """Runs `step` itself, as compare-and-swap of one document.

    A store of its own kind needs only the abstract methods below; `swap` must be atomic.
    """

    capabilities = Capabilities()

    def __init__(self, url: str, *, prefix: str, offer: int, tombstone_ttl: int) -> None:
        self.url = url
        self.prefix = prefix
        self.offer = offer
        self.tombstone_ttl = tombstone_ttl

    @abstractmethod
    def load(self, key: str, id: str = "", limit: int = 1) -> Loaded:
        """The key's document, its line as `step` is given it, and what is of `id`."""

    @abstractmethod
    def swap(self, key: str, version: int, change: Change) -> bool:
        """Store a change if the key's version is still this; say whether it was."""

    @abstractmethod
    def messages(self, key: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The kept messages of those ids that are still in the line."""

    @abstractmethod
    def due(self, limit: int, every: int) -> list[str] | None:
        """Keys whose due time has come; None if somebody else asked within `every` microseconds."""

    @abstractmethod
    def scan(self, prefix: str = "") -> Iterator[str]:
        """The keys that have a holder or a line."""

    def apply(self, key: str, operation: Request) -> Reply:
        return self._run(key, operation)

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        return [self._run(key, operation).answer == Done(True) for key, operation in leases]

    def reap(self, limit: int = 100, every: int = 0) -> Reply:
        keys = self.due(limit, every)
        return sweep(keys, limit, self.sweep_key, self.epoch())

    def sweep_key(self, key: str) -> Reply:
        """Let the reaper look at one key."""
        return self._run(key, Reap())

    def forget(self, key: str) -> None:
        raise StoreUnavailable(f"store {self.url} cannot delete the data of lock {key}: delete them by hand")

    def keep_namespace(self, broker: str, life: int) -> str:  # noqa: ARG002 - a store that is shared says more
        return broker

    def inspect(self, key: str) -> Snapshot:
        loaded = self.load(key)
        living = [holder for holder in loaded.document.holders if holder.expiry > loaded.now]
        return Snapshot(
            tuple(owner(holder, loaded.now) for holder in living),
            loaded.line.waiting,
            loaded.aside,
        )

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        return [self.inspect(key) for key in keys]

    def epoch(self) -> str:
        return self.load("").document.epoch

    def check(self) -> list[str]:
        return []

    def close(self) -> None:  # noqa: B027 - nothing to do is the rule
        """Nothing to give back, unless a store says otherwise."""

    def _run(self, key: str, operation: Operation) -> Reply:
        id = "" if isinstance(operation, Reap) else operation.id
        acquire = operation if isinstance(operation, Acquire) else None
        while True:
            loaded = self.load(key, id, acquire.limit if acquire else 1)
            transition = step(loaded.document, loaded.line, operation, loaded.now, self.offer)
            message = acquire.message if acquire and transition.kept else None
            change = Change(loaded, transition, id, message, loaded.now + self.tombstone_ttl)
            if self.swap(key, loaded.version, change):
                break
        messages = self.messages(key, transition.wake) if transition.wake else {}
        epoch = loaded.document.epoch
        return Reply(
            transition.answer,
            tuple(Wake(key, id, messages[id], epoch) for id in transition.wake if id in messages),
            tuple((key, id) for id in transition.aside),
            epoch if transition.wake else "",
        )
