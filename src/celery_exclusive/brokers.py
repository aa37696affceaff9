"""Reads the URLs of a broker: its kind, its place, and an id that distinguishes it from others."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from kombu.utils.url import url_to_parts, urlparts

from celery_exclusive.errors import OptionError

_FAMILIES: Final = {
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "amqps": "amqp",
    "pyamqp": "amqp",
    "librabbitmq": "amqp",
}
_NOTICE_AT_ONCE: Final = ("amqp", "qpid", "memory")
_PORTS: Final = {"redis": 6379, "sentinel": 26379, "amqp": 5672}
_PORT_OF_AMQPS: Final = 5671
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def broker_urls(conf: Mapping[str, Any], *, reading: bool = False) -> list[str]:
    """Return the URLs of the broker that an app publishes to, or that it reads from.

    Celery takes several, as a list or with semicolons; without any it means RabbitMQ on this machine.
    """
    # As an attribute of Celery's own configuration, which knows what the environment says.
    found = getattr(conf, "broker_read_url" if reading else "broker_write_url", None)
    found = found or conf.get("broker_url") or ""
    given = found.split(";") if isinstance(found, str) else cast("Iterable[object]", found)
    transport = conf.get("broker_transport") or "amqp"
    urls = [str(url).strip() for url in given]
    return [url if "://" in url else f"{transport}://{url}" for url in urls]


def redelivers_at_once(conf: Mapping[str, Any]) -> bool:
    """Whether the broker notices a dead worker by its connection, and needs no visibility timeout."""
    return all(family(url) in _NOTICE_AT_ONCE for url in broker_urls(conf, reading=True))


def scheme(url: str) -> str:
    """Return the text before `://`, or "" if this is no URL."""
    found = re.match(r"[\w.+-]+(?=://)", url.strip())
    return found[0].lower() if found else ""


def family(url: str) -> str:
    """Return the kind of a broker, whatever the transport to it: "redis", "amqp", "sqs"."""
    name = scheme(url).partition("+")[0]
    return _FAMILIES.get(name, name)


def data_folder(conf: Mapping[str, Any]) -> str:
    """Return the folder of a `filesystem://` broker; of two, the same one for both ends."""
    options = conf.get("broker_transport_options") or {}
    names = {"data_folder_in": "data_in", "data_folder_out": "data_out"}  # kombu's defaults
    return min(str(options.get(name, default)) for name, default in names.items())


def broker_id(conf: Mapping[str, Any]) -> str:
    """Return an id of the broker: kind, hosts and virtual host, without user and password."""
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
    return f"{kind}://{','.join(sorted({_place(kind, part) for part in parts}))}/{path}"


def is_on_this_machine(conf: Mapping[str, Any]) -> bool:
    """Whether only this machine uses this broker, as far as its URLs show."""
    return all(_is_near(url) for url in broker_urls(conf))


def is_server_of_broker(url: str, conf: Mapping[str, Any]) -> bool:
    """Whether a URL names a server of this broker, whichever of its databases."""
    return _server(url) in [_server(broker) for broker in broker_urls(conf)]


def is_in_one_process(conf: Mapping[str, Any]) -> bool:
    """Whether the broker is the memory of a process."""
    return all(family(url) == "memory" for url in broker_urls(conf))


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
    if family(url) in ("memory", "filesystem") or scheme(url).endswith(("+socket", "+sqlite")):
        return True
    host = _parts(url).hostname
    return host in (*LOOPBACK, socket.gethostname().lower()) or (host is None and family(url) in _PORTS)
