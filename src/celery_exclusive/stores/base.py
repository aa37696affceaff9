"""What every store can do, and how a URL finds one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol

from celery_exclusive.brokers import scheme
from celery_exclusive.core.operations import Answer, Owner, Renew, Request
from celery_exclusive.errors import OptionError, did_you_mean


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can promise.

    Parameters:
        line: it keeps waiting messages, so `on_conflict="wait"` is possible.
        fence: how long fences grow: for ever, or as long as the server keeps its data.
        durable: what a restart of the store leaves of a line: nothing, all but the last moments, or all.
        one_host: only processes on one machine can share it.
        one_process: not even these can.
    """

    line: bool = True
    fence: Literal["strict", "server-life"] = "strict"
    durable: Literal["none", "lagging", "yes"] = "yes"
    one_host: bool = False
    one_process: bool = False


@dataclass(frozen=True, slots=True)
class Wake:
    """A parked message that the caller must publish now, marked with the store's epoch."""

    key: str
    id: str
    message: bytes
    epoch: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A store's answer, with what follows from it for others.

    `wake` must be published by the caller; `aside` are (key, id) that nobody took for all their offers.
    `epoch` is the store's mark, which is told to whoever wakes somebody, and by `reap` always. `more` says
    that a sweep was full, so that more keys may be due; `unreadable` are (key, problem) of what it set aside.
    """

    answer: Answer
    wake: tuple[Wake, ...] = ()
    aside: tuple[tuple[str, str], ...] = ()
    epoch: str = ""
    more: bool = False
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A key as it is now: unexpired holders, how many wait in line, how many of them stepped aside.

    With a `problem` nothing of it can be told, since what the store keeps of it is damaged.
    """

    holders: tuple[Owner, ...] = ()
    waiting: int = 0
    aside: int = 0
    problem: str = ""


class Store(Protocol):
    """Where leases live.

    Every verb is one atomic step at one instant of the store's clock. After a lost reply it can be repeated,
    an Acquire with `redelivered=True` and the same token, the others as they are. Many threads may use a
    store, and so may a forked child, which opens its own connection. What cannot be answered raises
    `StoreUnavailable`; `UnreadableKey` if what is kept of a key is damaged. Other keys do not suffer from it.
    """

    url: str
    """The store's URL as it may be shown: without password."""

    @property
    def capabilities(self) -> Capabilities: ...

    def apply(self, key: str, operation: Request) -> Reply:
        """Do one operation on one key."""
        ...

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        """Keep many leases, of many keys; tell for each whether it lives."""
        ...

    def reap(self, limit: int = 100, every: int = 0) -> Reply:
        """Look after keys whose leases or offers ran out, at most `limit` of them.

        Does nothing (`Done(False)`) if somebody else did within the last `every` microseconds. If `limit`
        keys were due, the reply says that there may be `more`. A key whose data are damaged is told as
        `unreadable`, and looked at again ten minutes later.
        """
        ...

    def keep_namespace(self, broker: str, life: int) -> str:
        """Keep the namespace for a broker for `life` microseconds, unless another's workers keep it.

        Returns for which broker it is kept now.
        """
        ...

    def inspect(self, key: str) -> Snapshot:
        """What is going on at a key. Looking changes nothing."""
        ...

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        """The same of several keys, at one instant; one that is damaged has a `problem`."""
        ...

    def forget(self, key: str) -> None:
        """Drop all that is kept of a key, whoever holds it or waits there: the way out if it is damaged."""
        ...

    def scan(self, prefix: str = "") -> Iterator[str]:
        """The keys that have a holder or a line, or are damaged."""
        ...

    def epoch(self) -> str:
        """The store's random mark: each has its own, and a new one after it lost its data."""
        ...

    def check(self) -> list[str]:
        """Ask the store whether it can do its work; return warnings for the operator."""
        ...

    def close(self) -> None:
        """Give back connections. The store opens new ones when it is used again."""


class StoreFactory(Protocol):
    """What a URL scheme is registered with: usually the store's class."""

    def __call__(self, url: str, *, prefix: str, offer: int, tombstone_ttl: int) -> Store: ...


_factories: dict[str, str | StoreFactory] = {
    "memory": "celery_exclusive.stores.memory:MemoryStore",
    **dict.fromkeys(
        ("redis", "rediss", "redis+socket", "valkey", "valkeys", "valkey+socket"),
        "celery_exclusive.stores.redis.store:RedisStore",
    ),
    "sqlite": "celery_exclusive.stores.sql.sqlite:SqliteStore",
}


def register(scheme: str, factory: str | StoreFactory) -> None:
    """Teach `open_store` a URL scheme.

    Example:
        register("mystore", "my_package.store:MyStore")

    Parameters:
        scheme: what stands before `://`.
        factory: a callable, or "module:name" of one, which is then imported when first used.
    """
    _factories[scheme] = factory


def knows(url: str) -> bool:
    """Whether a store is registered for this URL's scheme."""
    return scheme(url) in _factories


def older_version(url: str, names: str) -> str:
    """The warning of a store that holds locks as the first version of this library kept them."""
    return (
        f"store {url}: it holds locks of an older version of celery-exclusive ({names}), which this one does "
        "not see: a task of that version and one of this may run at the same time. Stop the older workers "
        "and publishers when their tasks have run; their locks expire by themselves"
    )


def open_store(url: str, *, prefix: str = "cx", offer: float = 5.0, tombstone_ttl: float = 600.0) -> Store:
    """Make the store a URL names. It connects when it is first used.

    Parameters:
        url: for example `redis://localhost:6379/1`.
        prefix: namespace within the store.
        offer: seconds for which a free place is held open for the head of the line at first.
        tombstone_ttl: seconds for which a finished task that had waited is remembered.

    Raises:
        OptionError: the scheme is unknown, or its driver is not installed.
    """
    kind = scheme(url)
    if kind not in _factories:
        known = ", ".join(f"{name}://" for name in sorted(_factories))
        hint = did_you_mean(kind, _factories)
        what = repr(kind) if kind else "a text that is no URL"
        raise OptionError(f"exclusive_store: no store for {what} (there are {known}){hint}")
    factory = _factories[kind]
    if isinstance(factory, str):
        module, _, name = factory.partition(":")
        make: StoreFactory = getattr(import_module(module), name)
    else:
        make = factory
    return make(url, prefix=prefix, offer=int(offer * 1e6), tombstone_ttl=int(tombstone_ttl * 1e6))
