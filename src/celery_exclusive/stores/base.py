"""The protocol of all stores, and which of them a URL means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import NamedTuple, Protocol

from celery_exclusive.brokers import scheme
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import (
    Answer,
    Applied,
    Held,
    KeyOperation,
    Owner,
    Renew,
    Waiting,
    is_done_if_repeated,
)
from celery_exclusive.core.records import NEVER, NOT_BEGUN, Part
from celery_exclusive.core.room import NO_TERMS, Terms
from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.stores.workers import FORGOTTEN_AFTER, WorkerRecord


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The promises of a store.

    Parameters:
        line: the store keeps messages of waiting tasks, so `on_conflict="wait"` is possible.
        one_host: only processes on one machine can share it.
        one_process: only one process can use it.
        listing: the store can list its keys, so `celery -A proj locks ls` is possible.
    """

    line: bool = True
    one_host: bool = False
    one_process: bool = False
    listing: bool = True


@dataclass(frozen=True, slots=True)
class Wake:
    """A stored message that the caller must republish now, with the store's epoch.

    `waiting`: the number of tasks in its line now, itself included; 0 if the store does not say. `deaths`:
    the number of its runs that were recovered after their leases had expired. Without a message, another
    program has deleted it.
    """

    key: str
    id: str
    message: bytes
    epoch: str
    waiting: int = 0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A store's answer, with its consequences for other tasks.

    * `wake`: stored messages that the caller must republish. `aside`: (key, id) of tasks that stepped aside.
    * `epoch`: the epoch of the store, with every `wake` and with every answer of `reap`. While a node of a
      cluster is silent, it may be the epoch of the key's part, which is as good in a `wake`, or none.
    * `more`: a sweep was full, of keys or of bytes of messages, and more keys are due. `swept`: the number of
      keys that it looked at. `unreadable`: (key, problem) of damaged keys.
    * `due_in`: the time after a sweep until the next key is due, if that is less than `SOON`.
    * `time`: the instant of a sweep by the store's clock, also if it came too early. `times`: the instants by
      each clock of a store that has several.
    * `is_repeated`: the request was sent twice, and the first one may have been executed.
    """

    answer: Answer
    wake: tuple[Wake, ...] = ()
    aside: tuple[tuple[str, str], ...] = ()
    epoch: str = ""
    more: bool = False
    swept: int = 0
    unreadable: tuple[tuple[str, str], ...] = ()
    due_in: int | None = None
    time: int = 0
    times: tuple[int, ...] = ()
    is_repeated: bool = False

    @property
    def size(self) -> int:
        """The bytes of the messages that it wakes."""
        return sum(len(wake.message) for wake in self.wake)


def as_repeated(reply: Reply, operation: object) -> Reply:
    """Return the reply to a request that was sent twice, since the first answer was lost.

    A release that finds nothing to release was executed by the first request.
    """
    if reply.answer == Applied(False) and is_done_if_repeated(operation):
        reply = replace(reply, answer=Applied(True))
    return replace(reply, is_repeated=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a key: its holders, and how many tasks wait in line and aside.

    Of more than ten holders it names those that expire first, and says how many `others` there are. `line`
    names the first ten that wait in line. `limit` of a free key is 1.
    A holder with nothing `remaining` is dead, and holds the key until a worker recovers its run.
    With a `problem` its data are damaged, and all else is empty. `terms`: what it allows besides its limit,
    at the time `now` of the store.
    """

    holders: tuple[Owner, ...] = ()
    waiting: int = 0
    aside: int = 0
    problem: str = ""
    others: int = 0
    line: tuple[Waiting, ...] = ()
    limit: int = 1
    terms: Terms = NO_TERMS
    now: int = field(default=0, compare=False)

    @property
    def all_waiting(self) -> int:
        """The number of waiting tasks, those aside included."""
        return self.waiting + self.aside

    def has_room(self, limit: int) -> bool:
        """Whether one more unit may be held, under this limit of the code."""
        terms = self.terms
        most = terms.override.limit if terms.override else limit
        is_open = terms.opens_at <= self.now and all(rate.free > 0 for rate in terms.active)
        return is_open and len(self.holders) + self.others + terms.extra < most

    def newer_than(self, id: str) -> str | None:
        """Return the newest call that waits to take the place of this run. None: no such call waits.

        A call that was offered a slot may be older than the run, which has passed it then.
        """
        newer = [task_id(it.id) for it in self.line if it.is_replaceable and not it.offers]
        return next((it for it in reversed(newer) if it != task_id(id)), None)

    @property
    def as_answer(self) -> Held:
        return Held(self.holders, self.others)

    @property
    def is_busy(self) -> bool:
        return bool(self.holders or self.all_waiting or self.problem or self.is_set)

    @property
    def is_set(self) -> bool:
        """Whether an operator has set its limit, or it is held back."""
        return bool(self.terms.override or self.terms.opens_at > self.now)

    @property
    def state(self) -> str:
        """`running`, `waiting` (no holder, offered to the first in line) or `aside` (no worker accepts).

        A unique key is `queued` until its task begins, or held for a `period`. A key with damaged data is
        `damaged`; one that only an operator's limit or a hold keeps is `set`, any other one `free`.
        """
        if self.problem:
            return "damaged"
        if self.holders:
            phase = self.holders[0].phase
            return "queued" if phase in NOT_BEGUN else phase
        idle = "set" if self.is_set else "free"
        return "waiting" if self.waiting else "aside" if self.aside else idle


TASKS_PER_PAGE = 250
"""A Redis, which does nothing else meanwhile, reads so many in 2 to 3 milliseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """A waiting task with its stored message, which is empty if another program has deleted it."""

    waiting: Waiting
    message: bytes


class KeyInLine(NamedTuple):
    """A key with a line, or with a message that is kept behind its run.

    `waiting`, `aside`: how many tasks wait in line and aside. `is_due`: the time has come at which a sweep
    has to look at it, for instance since the lease of its run has expired. `age`: the microseconds since the
    first in line joined it. `is_damaged`: the store knows already that the data of the key cannot be read.
    """

    key: str
    waiting: int
    aside: int
    is_due: bool
    age: int = 0
    is_damaged: bool = False

    @property
    def all_waiting(self) -> int:
        """The number of waiting tasks, those aside included."""
        return self.waiting + self.aside


class Cursor(NamedTuple):
    """The end of a page: first come those in state "waiting", then "aside", each in order of (place, id).

    Behind them come the tasks that wait for room of their parts, one part after the other: the state is
    "shut" and the mark of the part.
    """

    state: str
    place: int
    id: str

    @property
    def order(self) -> tuple[int, str, int, bytes]:
        """The order of the tasks of a key."""
        rank = ("waiting", "aside").index(self.state) if self.state in ("waiting", "aside") else 2
        return rank, self.state, self.place, self.id.encode(errors="surrogatepass")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a key's line. `next`: the cursor after which it continues; None: this is the last page."""

    places: tuple[Place, ...] = ()
    next: Cursor | None = None


def page_of(found: Sequence[tuple[Cursor, Place]], count: int) -> Page:
    """Return a page of `count` tasks, of the tasks that were found, in order: one more, if there are more."""
    places = tuple(place for _, place in found[:count])
    return Page(places, found[count - 1][0] if len(found) > count else None)


class Times(NamedTuple):
    """The time of a store's clock, and of the last sweep by that clock, in microseconds.

    `swept` is None if no sweep is known: a Redis forgets it after an hour, and memcached needs none.
    """

    now: int
    swept: int | None


class Store(Protocol):
    """A store of leases and lines.

    Every operation is one atomic step at one instant of the store's clock. After a lost reply it can be
    repeated, an Acquire with `redelivered=True` and the same token, the others unchanged. Many threads may
    use a store, and so may a forked child, which opens its own connection. A store that does not answer
    raises `StoreUnavailable`; a damaged key raises `UnreadableKey`, and does not affect other keys.
    """

    url: str
    """The store's URL without password, for messages."""

    @property
    def capabilities(self) -> Capabilities: ...

    def apply(self, key: str, operation: KeyOperation) -> Reply:
        """Do one operation on one key."""
        ...

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> Sequence[bool | None]:
        """Renew leases of several keys; return for each whether it is still held.

        None: the store could not look, since others keep the key locked, or its answer was lost. The lease
        may be renewed then. No lease waits for another one.
        """
        ...

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        """End expired leases and offers of at most `limit` keys, and let their lines go on.

        Only this verb ends a lease with a copy of its message behind it, and not after `recovers_until` by
        the store's clock, since the holders may not have had the time to renew their leases.

        Does nothing (`Applied(False)`) after another reap within the last `every` microseconds. If more
        keys were due, the reply says that there is `more`. A damaged key is reported as `unreadable`, and
        checked again ten minutes later.
        """
        ...

    def keep_namespace(
        self, broker: str, life: int, worker: WorkerRecord | None = None, *, adopts: bool = False
    ) -> str:
        """Keep the namespace for a broker for `life` microseconds, unless it belongs to another.

        The namespace belongs to the broker that last kept it, for `life` and then as long as messages are in
        it, or until another broker `adopts` it. Returns the broker that it belongs to now. The record of a
        `worker` of that broker is kept for a day.
        """
        ...

    def forget_worker(self, worker: WorkerRecord) -> None:
        """Delete the record of a worker that has kept the namespace and then not started."""
        ...

    def namespace_owner(self, *, adopts: bool = False) -> str:
        """Return the broker that `keep_namespace` would return to another broker, without a change.

        It is "" if any broker may keep the namespace, or the store does not know.
        """
        ...

    def workers(self, within: int = FORGOTTEN_AFTER) -> dict[int, list[WorkerRecord]]:
        """Return the workers of each number that have kept the namespace lately, as far as it is known.

        `within` microseconds, or up to half a minute more; no record is older than a day.

        The token of a lease has the number of its worker: see `worker_number`. A store that cannot list its
        keys knows no workers.
        """
        ...

    def times(self) -> Times:
        """Return the time of the store's clock, and of the last sweep of the namespace, without a change."""
        ...

    def inspect(self, key: str) -> Snapshot:
        """Return the state of a key, without a change of it."""
        ...

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        """Return the states of several keys at one instant; a damaged key has a `problem`."""
        ...

    def holders(self, key: str) -> list[Owner]:
        """Return all holders of a key whose leases have not expired, also of one with more than ten."""
        ...

    def forget(self, key: str) -> None:
        """Delete the leases and the line of a key, for instance if they are damaged. Its tombstones stay."""
        ...

    def line(self, key: str, after: Cursor | None = None, count: int = TASKS_PER_PAGE) -> Page:
        """Return the tasks that wait for a key, in the order of `Cursor`, with their messages, page by page.

        It changes nothing. A page shows one instant of the store's clock. A task that moves between two
        pages, out of the line or to a later place aside, may be on both.

        Example:
            page = store.line("repo:17")
            while page.next:
                page = store.line("repo:17", after=page.next)

        Parameters:
            after: `next` of the page before; None: from the first in line.
            count: the most tasks of the page, at least 1. A store may return fewer before the last page.
        """
        ...

    def messages_of(self, tasks: Sequence[tuple[str, str]]) -> list[bytes]:
        """Return the stored message of each task, named by a key and its id there; empty if there is none.

        The store has the message of a task that waits, and of a run that it would recover.
        """
        ...

    def parts(self, key: str, count: int = 1_000) -> list[Part]:
        """Return up to so many parts of a key that have tasks or terms, in any order, without their tasks."""
        ...

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the id of each task that waits, in line, aside, or for room of its part."""
        ...

    def lines(self) -> Iterator[KeyInLine]:
        """Yield the keys with a line, or with a message behind its run, by an index.

        Of a damaged key the counts may be 0. A key whose line begins or ends meanwhile
        may be left out, or come twice.
        """
        ...

    def keys_of(self, task_id: str) -> Iterator[str]:
        """Yield the keys that the task with this id holds or waits for, without the states of other keys.

        Raises:
            ExclusiveError: the store cannot list its keys.
        """
        ...

    def scan(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that have a holder, a line or terms, or are damaged.

        Raises:
            ExclusiveError: the store cannot list them.
        """
        ...

    def epoch(self) -> str:
        """Return the random string that identifies the store, a new one after the store lost its data."""
        ...

    def check(self) -> list[str]:
        """Check that the store can do its work; return warnings for the operator."""
        ...

    def close(self) -> None:
        """Close connections. The store opens new ones when it is used again."""


StoreFactory = Callable[..., Store]
"""Makes a store, usually as its class: of a URL, with `prefix`, `offer` and `tombstone_ttl`."""
KEYS_AT_ONCE = 100
"""The most keys that `states` looks at in one request."""
_MYSQL_DRIVERS = ("", "+pymysql", "+mysqldb", "+mysqlconnector", "+mariadbconnector", "+asyncmy", "+aiomysql")
_HEROKU = "postgres"
"""As Heroku spells postgresql."""
_STORES = {
    "memory:MemoryStore": ("memory",),
    "memcached.store:MemcachedStore": ("memcached",),
    "redis.store:RedisStore": ("redis", "rediss", "redis+socket", "valkey", "valkeys", "valkey+socket"),
    "redis.cluster:ClusterStore": ("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"),
    "redis.sentinel:SentinelStore": ("sentinel",),
    "sql.sqlite:SqliteStore": ("sqlite",),
    "sql.postgres:PostgresStore": ("postgresql", "postgresql+psycopg", "postgresql+psycopg2", _HEROKU),
    "sql.mysql:MysqlStore": [kind + driver for kind in ("mysql", "mariadb") for driver in _MYSQL_DRIVERS],
    "django:open_django": ("django",),
    "django_cache:open_django_cache": ("django-cache",),
}
"""Our stores, and the schemes of their URLs."""
_factories: dict[str, str | StoreFactory] = {
    kind: f"celery_exclusive.stores.{path}" for path, kinds in _STORES.items() for kind in kinds
}


def knows(url: str) -> bool:
    """Whether a store is registered for this URL's scheme."""
    return scheme(url) in _factories


def has_driver(url: str) -> bool:
    """Whether the driver of this URL's store is installed."""
    try:
        factory_of(url)
    except OptionError:
        return False
    return True


def open_store(url: str, *, prefix: str = "cx", offer: float = 5.0, tombstone_ttl: float = 600.0) -> Store:
    """Make the store of a URL. It connects when it is first used.

    Parameters:
        url: for example `redis://localhost:6379/1`.
        prefix: namespace within the store.
        offer: seconds of the first offer of a free slot to the head of the line.
        tombstone_ttl: seconds for which a finished task that had waited is remembered.

    Raises:
        OptionError: the scheme is unknown, or its driver is not installed.
    """
    return make_store(url, prefix=prefix, offer=int(offer * 1e6), tombstone_ttl=int(tombstone_ttl * 1e6))


def make_store(url: str, *, prefix: str, offer: int, tombstone_ttl: int) -> Store:
    """Make the store of a URL as a factory does, with times in microseconds."""
    return factory_of(url)(url, prefix=prefix, offer=offer, tombstone_ttl=tombstone_ttl)


def pages(store: Store, key: str) -> Iterator[Page]:
    """Yield the line of a key page by page. The next page is read when it is asked for."""
    page = store.line(key)
    yield page
    while page.next:
        page = store.line(key, after=page.next)
        yield page


def whole_line(store: Store, key: str) -> Iterator[Place]:
    """Yield all tasks that wait for a key, in line and then aside, with one page in memory."""
    for page in pages(store, key):
        yield from page.places


def states(store: Store, keys: Collection[str]) -> Iterator[tuple[str, Snapshot]]:
    """Yield these keys in order, each with its state. One request looks at a hundred keys."""
    ordered = sorted(keys)
    for first in range(0, len(ordered), KEYS_AT_ONCE):
        batch = ordered[first : first + KEYS_AT_ONCE]
        yield from zip(batch, store.inspect_all(batch), strict=True)


def factory_of(url: str) -> StoreFactory:
    """Return the callable that makes the store of a URL."""
    kind = scheme(url)
    factory = _factories.get(kind)
    if factory is None:
        names = sorted(_factories.keys() - {_HEROKU})
        known = ", ".join(f"{name}://" for name in names if "+" not in name or name == "redis+cluster")
        hint = did_you_mean(kind, _factories)
        what = repr(kind) if kind else "a string that is no URL"
        raise OptionError(f"exclusive_store: no store for {what}{hint} There are {known}")
    if not isinstance(factory, str):
        return factory
    module, _, name = factory.partition(":")
    try:
        make: StoreFactory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"exclusive_store: the store of {kind}:// cannot be imported: {error}") from error
    return make
