"""The services of an app with locks: settings, store, and options of its tasks, but no task class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, cast

from celery import current_app
from celery.backends.base import DisabledBackend

from celery_exclusive.brokers import broker_urls, redelivers_at_once, scheme
from celery_exclusive.core.claim import FINISHED
from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.operations import Acquire, Enqueue, KeyOperation
from celery_exclusive.core.records import NEVER, SECOND
from celery_exclusive.errors import OptionError
from celery_exclusive.options.declared import Exclusive, StartOrder, Unique, UniqueOption
from celery_exclusive.options.option import Option, apps_with_locks
from celery_exclusive.options.settings import Settings, tombstone_ttl
from celery_exclusive.options.signing import Signer
from celery_exclusive.options.values import Values, option_of_call
from celery_exclusive.seams import probe
from celery_exclusive.stores.base import Reply, Store, open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.stores.redis import address
from celery_exclusive.system.cached import cached

_OF_ONE_SERVER = ("redis", "rediss", "redis+socket", "valkey", "valkeys", "valkey+socket")
"""The schemes of URLs that lead to one Redis or Valkey server."""
ATTRIBUTE = "_celery_exclusive"
"""The attribute of an app that has its services."""


class Courier(Protocol):
    """Republishes the stored messages that a reply names."""

    def follow_up(self, reply: Reply, wait: float = ...) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def close(self) -> None: ...


class Releaser(Protocol):
    """Releases leases in the background, until the store answers."""

    def add(self, *operations: tuple[str, KeyOperation]) -> None: ...
    def add_run(
        self, claims: Claims, *, done: bool = ..., redelivered: bool, dying: int | None = ...
    ) -> None: ...
    def add_message(self, id: str, header: Any) -> None: ...
    def add_retry(self, id: str, header: Any, *, done: bool = ...) -> None: ...
    def drain(self) -> None: ...


class Installer(Protocol):
    def adopt(self, task: Any) -> None: ...
    def adopt_all(self) -> None: ...
    def unknown_tasks(self) -> Iterator[str]: ...


class Services:
    """The services of an app with locks, in every process.

    `workers`: of the app in this process; a test may begin one before another has ended.
    `conflicts_when_eager`: a test wants eager tasks to conflict, too.
    """

    courier: Courier
    releaser: Releaser
    installer: Installer
    conflicts_when_eager = False

    def __init__(self, app: Any) -> None:
        self.app = app
        self.workers: list[Any] = []
        self._key_users: tuple[int, dict[object, set[str]]] = (0, {})

    @property
    def worker(self) -> Any:
        """The context of the worker that this process belongs to, or None."""
        return self.workers[-1] if self.workers else None

    @cached
    def settings(self) -> Settings:
        return Settings.from_conf(self.app.conf)

    @cached
    def is_fast(self) -> bool:
        """Whether what only makes things faster is on."""
        if not self.settings.exclusive_fast:
            return False
        probe.load_transport(self.app)
        return not probe.warnings()

    @cached
    def amqp(self) -> Any:
        """Celery's `app.amqp`, which takes a lock each time it is looked up."""
        return self.app.amqp

    @cached
    def store(self) -> Store:
        """The store of this app. The stored messages that its answers name are republished."""
        settings = self.settings
        store = open_store(
            self.store_url,
            prefix=settings.exclusive_prefix,
            offer=settings.exclusive_offer,
            tombstone_ttl=tombstone_ttl(self.app.conf),
        )
        return cast("Store", PublishingStore(store, self))

    @property
    def store_url(self) -> str:
        return self._choice[0]

    @property
    def origin(self) -> str:
        """Where the store's URL was found."""
        return self._choice[1]

    @cached
    def _choice(self) -> tuple[str, str]:
        return choose(self.app.conf, self.settings.exclusive_store)

    @cached
    def broker_place(self) -> str:
        """The Redis database of the broker; "" if it is none, or several."""
        urls = broker_urls(self.app.conf)
        return _place_of(urls[0]) if len(urls) == 1 else ""

    @cached
    def has_one_place(self) -> bool:
        """Whether broker and store are one Redis database, where one call can change both."""
        return bool(self.broker_place) and _place_of(self.store_url) == self.broker_place

    @cached
    def orders_calls(self) -> bool:
        """Whether calls that may wait take their places when they are published, if no option says how."""
        return self.has_one_place and self.settings.exclusive_max_waiting is None

    def order(self, option: Exclusive) -> StartOrder:
        """Return the order in which the tasks of a key start, for publishers and workers alike.

        `lock()` and tasks of other queues share an absolute key, and do not wait for a call that has not
        begun. A line with parts is fair only to calls that are in it, and not in a queue. A call that
        supersedes runs has to be the newest that was made, and to be known while no worker slot is free.
        """
        if option.order is not None:
            return option.order
        if option.supersedes:
            return "published"
        may_join = (option.key is None or option.per) and option.has_line and option.max_waiting is None
        return "published" if may_join and self.orders_calls else "arrived"

    @cached
    def signer(self) -> Signer:
        return Signer(self.settings.secrets, self.settings.exclusive_prefix)

    def exclusive(self, task: Any, values: Values | None = None) -> Exclusive | None:
        return option_of_call(task, Exclusive, values, self._limits if values else None)

    def unique(self, task: Any, values: Values | None = None) -> UniqueOption | None:
        return option_of_call(task, UniqueOption, values, self._limits if values else None)

    @cached
    def has_rpc_results(self) -> bool:
        """Whether a result is sent to the caller of its task alone."""
        return str(self.app.conf.result_backend or "").startswith("rpc")

    def may_join(self, task: Any, option: UniqueOption | None) -> bool:
        """Whether duplicates can wait in line for a task's end, and read its result: if its key does so."""
        if option is None or option.held_until != FINISHED:
            return False
        is_read = not (self.has_rpc_results or isinstance(self.app.backend, DisabledBackend))
        is_kept = is_read and not task.ignore_result and self.store.capabilities.line
        return is_kept and not self._shares_key(task, option.key)

    def _shares_key(self, task: Any, key: object) -> bool:
        """Whether another task may hold the unique key of this one, and end with a result of its own."""
        if key is None:
            return False
        tasks = self.app.tasks
        if self._key_users[0] != len(tasks):  # one more was registered
            users: dict[object, set[str]] = {}
            for other in tasks.values():
                if option := self.unique(other):
                    users.setdefault(option.key, set()).add(other.name)
            self._key_users = (len(tasks), users)
        return bool(self._key_users[1].get(key, set()) - {task.name})

    @property
    def _limits(self) -> Settings | None:
        """The limits of the values in a header. None: headers are signed."""
        return None if self.signer.is_on else self.settings

    @cached
    def key_headers(self) -> tuple[str, ...]:
        return tuple(sorted(self.settings.exclusive_key_headers))

    @property
    def is_needed(self) -> bool:
        return any(self.exclusive(task) or self.unique(task) for task in self.app.tasks.values())

    def ttl(self, option: Option | None) -> int:
        own: Any = option and option.ttl
        return round((own or self.settings.exclusive_ttl) * SECOND)

    def queued_ttl(self, unique: UniqueOption | None) -> int:
        own: Any = isinstance(unique, Unique) and (unique.period or unique.queued_ttl)
        return round((own or self.settings.exclusive_queued_ttl) * SECOND)

    def max_waiting(self, option: Exclusive) -> int | None:
        """Return how many tasks may wait in line. None: any number; with "latest" the newest always may."""
        most: int | None = option.max_waiting or self.settings.exclusive_max_waiting
        return None if option.replaces else most

    def recovers(self, *options: Option | None) -> bool:
        """Whether the store keeps the messages of runs with late acknowledgement until they are done.

        The first of these options with a value decides, and then the setting.
        """
        said = (option.recover for option in options if option and option.recover is not None)
        return next(said, self._recovers) and self.store.capabilities.line

    @cached
    def _recovers(self) -> bool:
        setting = self.settings.exclusive_recover
        return not redelivers_at_once(self.app.conf) if setting is None else setting

    def allows_without(self, option: Option | None) -> bool:
        """Whether a task may run, or be published, without a lease while the store does not answer."""
        own = option and option.on_store_error
        return (own or self.settings.exclusive_on_store_error) == "allow"


def _place_of(url: str) -> str:
    """Return the Redis database that a URL leads to. "": to none, or each lease waits for its replicas."""
    if scheme(url) not in _OF_ONE_SERVER:
        return ""
    try:
        found = address.parse(url)
    except OptionError:
        return ""
    return "" if found.replicas else address.place(found.options)  # a message would go before its lease


def services_of(app: Any, caller: str) -> Services:
    """Return the services of this app, or of the only one with locks, or of the current app, or raise.

    `caller`: what an error begins with, "lock()".
    """
    installed = list(apps_with_locks)
    found = app or (installed[0] if len(installed) == 1 else current_app)
    services: Services | None = getattr(found, ATTRIBUTE, None)
    if services:
        return services
    if installed and not app:
        names = ", ".join(sorted(map(repr, installed)))
        raise OptionError(
            f"{caller}: the current app has no locks: choose one of the apps that have, with app= ({names})"
        )
    raise OptionError(
        f"{caller}: the app {found!r} has no locks: call celery_exclusive.install(app) right after you make "
        "it, and import its module before you use a lock"
    )


class PublishingStore:
    """A store that signs the messages it stores, and republishes the messages that its answers name."""

    def __init__(self, store: Store, services: Services) -> None:
        self._store, self._services = store, services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, key: str, operation: KeyOperation, *, follows_up: bool = True) -> Reply:
        """Apply the operation, and republish the messages in its reply if it `follows_up`, not the caller."""
        if isinstance(operation, (Acquire, Enqueue)) and operation.message is not None:
            signed = self._services.signer.sign_parked(operation.message, key, operation.id)
            operation = replace(operation, message=signed)
        reply = self._store.apply(key, operation)
        if follows_up and (reply.wake or reply.aside):
            self._services.courier.follow_up(reply)
        return reply

    def holder(self, key: str) -> str:
        holder: str = cast("Any", self._store).holder(key)  # found sooner here than by `__getattr__`
        return holder

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        """Reap without waiting for the courier: a sweep of many keys can `wait` for it."""
        reply = self._store.reap(limit, every, recovers_until=recovers_until)
        self._services.courier.follow_up(reply, wait=0)
        return reply
