"""Keeps a namespace for one broker: the reaper of another would publish waiting tasks to the wrong broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_exclusive.brokers import broker_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError

if TYPE_CHECKING:
    from celery_exclusive.services import Services

LIFE = 60
"""Seconds after which a namespace that no worker has kept is free again."""


def own_broker(services: Services) -> str:
    """Return the id of this app's broker."""
    return services.settings.exclusive_broker_id or broker_id(services.app.conf)


def keep_namespace(services: Services, broker: str) -> None:
    """Keep the namespace for this app's broker.

    Workers do it at start and with every heartbeat, other processes before they republish a message.

    Raises:
        OptionError: workers of another broker keep it.
    """
    settings, store = services.settings, services.store
    owner = store.keep_namespace(broker, LIFE * SECOND)
    if owner != broker:
        raise OptionError(
            f"exclusive_prefix={settings.exclusive_prefix!r} in {store.url} belongs to the workers of broker "
            f"{owner}, and the broker of this app is {broker}: set another exclusive_prefix for "
            "each broker, or, if the two are one broker under two names, the same exclusive_broker_id"
        )
