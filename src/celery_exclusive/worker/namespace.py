"""A namespace belongs to one broker: a reaper of another would publish waiting tasks into the wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.utils.url import parse_url

from celery_exclusive.core.document import SECOND
from celery_exclusive.errors import OptionError

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

LIFE = 60
"""Seconds after which a namespace is free again that no worker has kept."""
_FAMILIES = {"rediss": "redis", "amqps": "amqp", "pyamqp": "amqp", "librabbitmq": "amqp"}
_PORTS = {"redis": 6379, "amqp": 5672}
_LOOPBACK = ("127.0.0.1", "::1", None)


def keep_namespace(installation: Installation) -> None:
    """Keep the namespace for this app's broker; workers do it at start and with every heartbeat.

    Raises:
        OptionError: workers of another broker keep it.
    """
    settings, store = installation.settings, installation.store
    broker = settings.exclusive_broker_id or broker_id(installation.app)
    owner = store.keep_namespace(broker, LIFE * SECOND)
    if owner != broker:
        raise OptionError(
            f"exclusive_prefix={settings.exclusive_prefix!r} in {store.url} belongs to the workers of broker "
            f"{owner}, and this worker's broker is {broker}: give each an exclusive_prefix of its own; "
            "or all workers the same exclusive_broker_id, if the two are one under two names"
        )


def broker_id(app: Any) -> str:
    """What tells brokers apart: kind, hosts and virtual host, without user and password."""
    connection = app.connection_for_write()
    parts = [parse_url(url) for url in connection.alt or [connection.as_uri(include_password=True)]]
    kind = str(parts[0]["transport"])
    family = _FAMILIES.get(kind, kind)
    places = {(part["hostname"], part["port"] or _PORTS.get(family, "")) for part in parts}
    hosts = sorted(f"{'localhost' if host in _LOOPBACK else host}:{port}" for host, port in places)
    virtual_host = str(parts[0]["virtual_host"] or "").strip("/") or ("0" if family == "redis" else "")
    return f"{family}://{','.join(hosts)}/{virtual_host}"
