"""A store made of three things: load a document, swap it if nobody else did, list what is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from celery_exclusive.core.document import Document, Line
from celery_exclusive.core.operations import Acquire, Done, Operation, Reap, Release, Remove, Renew, Rival
from celery_exclusive.core.step import Transition, step
from celery_exclusive.stores.base import Capabilities, Reply, Snapshot, Wake


@dataclass(frozen=True, slots=True)
class Loaded:
    """A key as it stood at the instant `now` of the store's clock; `version` changes with every swap.

    `aside` counts all who stepped aside, of which the line has only the first.
    """

    version: int
    now: int
    document: Document
    line: Line
    aside: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a swap must store: the transition, and the operation's id and message it speaks of."""

    transition: Transition
    id: str
    message: bytes | None
    tombstone_until: int


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
        """The key's document with `reach(document, limit)` entries of its line, and what is of `id`."""

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

    def apply(self, key: str, operation: Acquire | Release | Remove) -> Reply:
        return self._run(key, operation)

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        return [self._run(key, operation).answer == Done(True) for key, operation in leases]

    def reap(self, limit: int = 100, every: int = 0) -> Reply:
        keys = self.due(limit, every)
        replies = [self._run(key, Reap()) for key in keys or ()]
        return Reply(
            Done(keys is not None),
            tuple(wake for reply in replies for wake in reply.wake),
            tuple(aside for reply in replies for aside in reply.aside),
        )

    def keep_namespace(self, broker: str, life: int) -> str:  # noqa: ARG002 - a store that is shared says more
        return broker

    def inspect(self, key: str) -> Snapshot:
        loaded = self.load(key)
        living = [holder for holder in loaded.document.holders if holder.expiry > loaded.now]
        return Snapshot(
            tuple(Rival(h.id, max(loaded.now - h.fence, 0), h.expiry - loaded.now) for h in living),
            loaded.line.waiting,
            loaded.aside,
        )

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
            change = Change(transition, id, message, loaded.now + self.tombstone_ttl)
            if self.swap(key, loaded.version, change):
                break
        messages = self.messages(key, transition.wake) if transition.wake else {}
        epoch = loaded.document.epoch
        return Reply(
            transition.answer,
            tuple(Wake(key, id, messages[id], epoch) for id in transition.wake if id in messages),
            tuple((key, id) for id in transition.aside),
        )
