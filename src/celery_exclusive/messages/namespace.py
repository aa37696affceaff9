"""Keeps a namespace for one broker: workers of another broker would publish and run its waiting tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive.brokers import broker_beside, broker_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.workers import WorkerRecord

LIFE = 60
"""Seconds after the last `keep_namespace` until a namespace without messages is free again."""
_NOBODY = "nobody"
"""The owner of a namespace while its messages are deleted, so that no worker publishes them."""
_A_MOMENT = 1_000
"""Microseconds."""


def own_broker(services: Services) -> str:
    return services.settings.exclusive_broker_id or broker_id(services.app.conf)


def broker_on_store(services: Services) -> str:
    """Return what distinguishes this app's broker on the server of its store. "": it is on another one.

    Two apps with one such string in one namespace have one broker, by whatever name they know its server.
    """
    settings, conf = services.settings, services.app.conf
    return "" if settings.exclusive_broker_id else broker_beside(services.store.url, conf)


def living_workers(services: Services) -> list[WorkerRecord]:
    return [it for its in services.store.workers(LIFE * SECOND).values() for it in its]


def keep_namespace(services: Services, broker: str, worker: WorkerRecord | None = None) -> str:
    """Keep the namespace for this app's broker, unless another's workers or messages are in it (OptionError).

    Workers do this at start and with every heartbeat, other processes before they republish a message. Where
    broker and store are one Redis, it is adopted: queues and waiting tasks are in one place, so the Redis has
    moved or has another name, and is no copy without its queues. A worker's record is kept in the same
    request.

    Returns the broker that it is kept for: the name that living workers know this app's broker by.
    """
    owner = services.store.keep_namespace(broker, LIFE * SECOND, worker)
    if owner != broker and services.has_one_place:
        owner = services.store.keep_namespace(broker, LIFE * SECOND, worker, adopts=True)
    if owner != broker and _is_one_broker(services):
        broker, owner = owner, services.store.keep_namespace(owner, LIFE * SECOND, worker)
    if owner != broker:
        raise OptionError(_refusal(services, broker, owner))
    return broker


def refuse_other_owner(services: Services) -> None:
    """Raise the error that `keep_namespace` raises for this app's broker. Nothing is changed."""
    broker, owner = own_broker(services), services.store.namespace_owner(adopts=services.has_one_place)
    if owner not in ("", broker) and not _is_one_broker(services):
        raise OptionError(_refusal(services, broker, owner))


def adopt_namespace(services: Services, *, drops: bool = False) -> None:
    """Take the namespace over from a broker without workers. `drops`: delete all leases and waiting tasks."""
    broker, life = (_NOBODY, _A_MOMENT) if drops else (own_broker(services), LIFE * SECOND)
    owner = services.store.keep_namespace(broker, life, adopts=True)
    if owner != broker:
        raise OptionError(f"{_belongs_to(services, owner)}, which run: stop them, and wait {LIFE} s")
    if drops:
        for key in list(services.store.scan()):
            services.store.forget(key)


def _is_one_broker(services: Services) -> bool:
    """Whether the workers of another broker know this app's broker by another name of its server.

    All have to say so: a worker of an earlier owner may have been there just now.
    """
    place = broker_on_store(services)
    return place != "" and {worker.broker for worker in living_workers(services)} == {place}


def _refusal(services: Services, broker: str, owner: str) -> str:
    return (
        f"{_belongs_to(services, owner)}, and the broker of this app is {broker}: set another "
        "exclusive_prefix for each broker, or, if the two are one broker under two names, "
        f"exclusive_broker_id={owner!r}. If its workers have gone, as in a copy of its database, "
        "`celery -A proj locks adopt` lets workers of this app run the tasks that wait there, and "
        "`locks adopt --drop` deletes them"
    )


def _belongs_to(services: Services, owner: str) -> str:
    prefix, url = services.settings.exclusive_prefix, services.store.url
    return f"exclusive_prefix={prefix!r} in {url} belongs to the workers of broker {owner}"
