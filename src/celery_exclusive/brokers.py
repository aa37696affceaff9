"""The kinds of brokers with their behaviour, and the facts in the URLs of a broker."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import celery
from kombu.utils.url import url_to_parts, urlparts

from celery_exclusive.errors import OptionError, docs_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The behaviour of a kind of broker. docs/how-to/brokers.md has the same table for users.

    * `proven_since`: the oldest Celery with which tests with real workers prove the promises of the library.
    * `visibility_timeout`: kombu's default, in seconds. None: the broker redelivers at once, or never.
    * `notices_at_once`: a dead worker, by its connection.
    * `counts_deliveries`: its queues may drop a message that was delivered too often.
    * `shown`: the failures that tests have shown of a broker that is not proven.
    """

    proven_since: tuple[int, int] | None = None
    visibility_timeout: float | None = None
    notices_at_once: bool = False
    counts_deliveries: bool = False
    shown: str = ""

    @property
    def is_proven(self) -> bool:
        return self.proven_since is not None and self.proven_since <= celery.VERSION


_KINDS: Final = {
    "redis": Kind(proven_since=(5, 4), visibility_timeout=3600),
    "sentinel": Kind(proven_since=(5, 4), visibility_timeout=3600),
    "amqp": Kind(proven_since=(5, 4), notices_at_once=True, counts_deliveries=True),
    "sqs": Kind(proven_since=(5, 7), visibility_timeout=1800, counts_deliveries=True),
    "pgmq": Kind(proven_since=(5, 7), visibility_timeout=1800),
    "sqla+postgresql": Kind(proven_since=(5, 4)),
    "sqla+mysql": Kind(proven_since=(5, 4)),
    "sqla+sqlite": Kind(proven_since=(5, 4)),
    "filesystem": Kind(proven_since=(5, 4)),
    "memory": Kind(proven_since=(5, 4), notices_at_once=True),
    "librabbitmq": Kind(notices_at_once=True, counts_deliveries=True),
    "qpid": Kind(notices_at_once=True),
    "azurestoragequeues": Kind(visibility_timeout=1800),
    "slmq": Kind(visibility_timeout=1800),
    "gcpubsub": Kind(
        shown="with kombu 5.7 a redelivered task looks like a new one and may be skipped, a message that was "
        "rejected comes back, and a call does not wait until the server has its message"
    ),
}
_NOT_SHOWN: Final = (
    "no test has shown that waiting tasks come back, and that tasks of a dead worker run again"
)
_FAMILIES: Final = {
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "amqps": "amqp",
    "pyamqp": "amqp",
    "librabbitmq": "amqp",
    "sqlalchemy": "sqla",
}
_PORTS: Final = {"redis": 6379, "sentinel": 26379, "amqp": 5672}
_PORT_OF_AMQPS: Final = 5671
_PARTS_OF_BROKER: Final = (
    "region",
    "master_name",
    "global_keyprefix",
    "queue_name_prefix",
    "queue_tablename",
    "message_tablename",
)
"""Transport options by which two apps have different queues behind the same URL."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def broker_urls(conf: Mapping[str, Any], *, reading: bool = False) -> list[str]:
    """Return the URLs of the broker that an app publishes to or reads from: without any RabbitMQ here."""
    # As an attribute of Celery's own configuration, which knows what the environment says.
    found = getattr(conf, "broker_read_url" if reading else "broker_write_url", None)
    found = found or conf.get("broker_url") or ""
    given = found.split(";") if isinstance(found, str) else cast("Iterable[object]", found)
    transport = conf.get("broker_transport") or "amqp"
    urls = [str(url).strip() for url in given]
    return [url if "://" in url else f"{transport}://{url}" for url in urls]


def kinds(conf: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the kinds of the brokers that an app reads from, by families; `sqla` has one per database."""
    return dict(map(_kind, broker_urls(conf, reading=True)))


def redelivers_at_once(conf: Mapping[str, Any]) -> bool:
    """Whether the broker notices a dead worker by its connection, and needs no visibility timeout."""
    return all(kind.notices_at_once for kind in kinds(conf).values())


def counts_deliveries(conf: Mapping[str, Any]) -> bool:
    """Whether a message that is returned to its queue again and again may be dropped there."""
    return any(kind.counts_deliveries for kind in kinds(conf).values())


def drops_expired(conf: Mapping[str, Any]) -> bool:
    """Whether the broker drops a message itself when the time of its `expiration` property is over."""
    return all(family(url) == "amqp" for url in broker_urls(conf))


def refuse_without_transport(conf: Mapping[str, Any]) -> None:
    """Raise OptionError for a broker that Celery would not reach."""
    for setting, url in _named(conf):
        # kombu takes what is before the plus, and the rest for the name of a host.
        if "+" in scheme(url) and family(url) in _KINDS and scheme(url) != "redis+socket":
            raise OptionError(
                f"{setting}: Celery has no transport for {scheme(url)}://, and would connect to another "
                "server, such as a Redis on localhost: name one Redis (redis://), Sentinel (sentinel://) or "
                "RabbitMQ (amqp://)"
            )


def unproven(conf: Mapping[str, Any]) -> str | None:
    """Return the warning about a broker that is not proven. None: all brokers of the app are proven."""
    for setting, url in _named(conf):
        name, kind = _kind(url)
        if not kind.is_proven:
            version = f" and Celery {celery.__version__}" if kind.proven_since else ""
            what = f"{name or url.partition('://')[0]}:// is not proven with this library{version}"
            return f"{setting}: {what}: {kind.shown or _NOT_SHOWN}"
    return None


def refuse_unproven(conf: Mapping[str, Any]) -> None:
    if found := unproven(conf):
        proven = ", ".join(f"{name}://" for name, kind in _KINDS.items() if kind.is_proven)
        raise OptionError(
            f"{found}. Use one of {proven}; or try it and set exclusive_unproven_broker = True: see "
            f"{docs_page('how-to/brokers')}"
        )


def scheme(url: str) -> str:
    found = re.match(r"[\w.+-]+(?=://)", url.strip())
    return found[0].lower() if found else ""


def family(url: str) -> str:
    """Return the kind of a broker, with any transport to it: "redis", "amqp", "sqs"."""
    name = scheme(url).partition("+")[0]
    return _FAMILIES.get(name, name)


def _named(conf: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the URLs of all brokers, each with the setting that has it."""
    common = getattr(conf, "broker_url", None) or conf.get("broker_url")
    for setting, reading in (("broker_write_url", False), ("broker_read_url", True)):
        has_own = getattr(conf, setting, None) not in (None, common)
        for url in broker_urls(conf, reading=reading):
            yield setting if has_own else "broker_url", url


def _kind(url: str) -> tuple[str, Kind]:
    """Return the kind of a broker, and its name there: `sqla` has one per database."""
    name = scheme(url)
    if name not in _KINDS:  # librabbitmq is: another client of RabbitMQ
        name = family(url)
    if name == "sqla":
        name = "+".join([name, *scheme(url).split("+")[1:2]]).replace("mariadb", "mysql")
    return name, _KINDS.get(name, Kind())


def data_folder(conf: Mapping[str, Any]) -> str:
    """Return the folder of a `filesystem://` broker. Of two folders both ends choose the same one."""
    options = conf.get("broker_transport_options") or {}
    names = {"data_folder_in": "data_in", "data_folder_out": "data_out"}  # kombu's defaults
    return min(str(options.get(name, default)) for name, default in names.items())


def broker_id(conf: Mapping[str, Any]) -> str:
    """Return an id of the broker: kind, hosts, virtual host and prefixes, without user and password."""
    urls = broker_urls(conf)
    kind = family(urls[0])
    if kind == "filesystem":
        return f"filesystem://{data_folder(conf)}"
    parts = [_parts(url) for url in urls]
    path = parts[0].path or ""
    if "+" in scheme(urls[0]):
        kind = scheme(urls[0])
        database = parts[0].query.get("virtual_host")  # of a Redis behind a socket file
        path += f"?virtual_host={database}" if database else ""
    elif kind in ("redis", "sentinel"):
        path = path.strip("/") or "0"
    elif path == "/":
        path = ""
    options = conf.get("broker_transport_options") or {}
    path += "".join(f" {name}={options[name]}" for name in _PARTS_OF_BROKER if options.get(name))
    return f"{kind}://{','.join(sorted({_place(kind, part) for part in parts}))}/{path}"


def is_broker_of(app: Any, connection: Any) -> bool:
    return _id_of(connection) in [_id_of(app.connection_for_write(url)) for url in broker_urls(app.conf)]


def broker_beside(url: str, conf: Mapping[str, Any]) -> str:
    """Return the id of the broker without its server, if a URL leads to that server; else ""."""
    is_one = len(broker_urls(conf)) == 1 or family(url) == "sentinel"
    if family(url) not in ("redis", "sentinel") or not is_one or not is_server_of_broker(url, conf):
        return ""
    kind, _, place = broker_id(conf).partition("://")
    return f"{kind}:///{place.partition('/')[2]}"


def is_on_this_machine(conf: Mapping[str, Any]) -> bool:
    """Whether only this machine uses this broker, as far as its URLs show."""
    return all(_is_near(url) for url in broker_urls(conf))


def is_server_of_broker(url: str, conf: Mapping[str, Any]) -> bool:
    if "+cluster" in scheme(url):  # which no broker is
        return False
    first = url.partition(";")[0] if scheme(url) == "sentinel" else url
    return _server(first) in [_server(broker) for broker in broker_urls(conf)]


def is_in_one_process(conf: Mapping[str, Any]) -> bool:
    """Whether the broker is the memory of a process."""
    return all(family(url) == "memory" for url in broker_urls(conf))


def _id_of(connection: Any) -> str:
    options = connection.transport_options
    return broker_id({"broker_url": connection.as_uri(), "broker_transport_options": options})


def _parts(url: str) -> urlparts:
    try:
        return url_to_parts(url)
    except ValueError:  # its text would show a part of the password
        raise OptionError(
            f"broker_url: cannot understand this {scheme(url)}:// URL: percent-encode what is special in its "
            "password ('/' is %2F), and correct its port"
        ) from None


def _place(kind: str, part: urlparts) -> str:
    host = "localhost" if part.hostname in (*LOOPBACK, None) else part.hostname
    port = part.port or _PORTS.get(kind)
    if kind == "amqp" and port == _PORT_OF_AMQPS:
        port = _PORTS[kind]  # the same broker, over TLS
    return f"{host}:{port}" if port else str(host)


def _server(url: str) -> str:
    parts, kind = url_to_parts(url), family(url)
    return f"{kind}+socket:{parts.path}" if "+socket" in scheme(url) else f"{kind}://{_place(kind, parts)}"


def _is_near(url: str) -> bool:
    if family(url) in ("memory", "filesystem") or re.search(r"\+(socket|sqlite)\b", scheme(url)):
        return True
    host = _parts(url).hostname
    return host in (*LOOPBACK, socket.gethostname().lower()) or (host is None and family(url) in _PORTS)
