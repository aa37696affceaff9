"""Reads a store URL: a server, a socket file or the nodes of a cluster; user, database and TLS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from celery_exclusive.brokers import LOOPBACK, scheme
from celery_exclusive.display import printable
from celery_exclusive.errors import OptionError, closest
from celery_exclusive.stores.redis import tls

Option = str | int | float | bool | None
Place = tuple[str, int]
"""Host and port of a node of a cluster."""

TIMEOUT = 5.0
"""Seconds for connecting and for each answer, unless the URL says otherwise."""
_LONGEST_TIMEOUT = 86_400
_NAMES = ("replicas", "socket_timeout", "socket_connect_timeout", "virtual_host", "master_name")
"""The options of a URL that the store reads; the options `ssl_...` are in `tls`."""
_ALIKE = 0.85
"""The similarity to one of them at which an unknown name is refused. Options of Celery alone are ignored."""
_DATABASE = "the database of a Redis URL is a number, as in redis://localhost/1"
_MAY_HAVE_AT = ("username=", "password=", "ssl_password=")
_OF_CLUSTER = re.compile(
    r"(?P<kind>redis|valkey)(?P<tls>s?)\+cluster://(?P<login>[^/?#]*@)?(?P<hosts>[^/?#]*)(?P<rest>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Address:
    """The parsed URL of a Redis store.

    `shown`: the URL without password and query. `options`: the options of redis-py's connections.
    `replicas`: the number of replicas that must confirm each lease.
    """

    shown: str
    is_socket: bool
    is_tls: bool
    options: dict[str, Option] = field(repr=False)
    replicas: int = 0

    @property
    def host_and_port(self) -> Place:
        return str(self.options["host"]), int(str(self.options["port"]))

    def of_node(self, host: str, port: int) -> Address:
        """Return the address of another node of this cluster: login and options are the same."""
        return replace(self, options={**self.options, "host": host, "port": port})


def parse(url: str) -> Address:
    """Read a URL as Celery does for a Redis broker and result backend; options for those alone are ignored.

    Example:
        rediss://user:secret@example.org:6380/2?ssl_cert_reqs=CERT_NONE, redis+socket:///run/redis.sock?virtual_host=2

    Raises:
        OptionError: the URL is malformed. No part of it is shown: it may be of the password.
    """
    try:
        parts = urlsplit(url)
        if _is_misread(parts):
            raise ValueError
        return _parse(parts, parts.scheme.replace("valkey", "redis"))
    except OptionError:
        raise
    except ValueError:
        raise malformed(url) from None


def parse_cluster(url: str) -> tuple[str, list[Address]]:
    """Return the URL of a cluster without password and query, and the addresses of its nodes.

    Example:
        rediss+cluster://user:secret@a.example:6379;b.example:6379?ssl_ca_certs=/etc/ssl/redis.pem

    Raises:
        OptionError: the URL is malformed, or names a database other than 0.
    """
    found = _OF_CLUSTER.fullmatch(url.strip())
    if not found:
        raise OptionError("exclusive_store: the URL of a Redis Cluster is like redis+cluster://a:7000;b:7001")
    kind, tls, login, hosts, rest = found.groups(default="")
    nodes = [parse(f"redis{tls}://{login}{host}{rest}") for host in hosts.split(";")]
    if any(node.options["db"] for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster has no database but 0: leave it out of the URL")
    if any(node.replicas for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster knows no replicas=: leave it out of the URL")
    shown = [node.shown.partition("://")[2].removesuffix("/0") for node in nodes]
    names = ";".join([shown[0], *(name.rpartition("@")[2] for name in shown[1:])])
    return f"{kind}{tls}+cluster://{names}", nodes


def malformed(url: str) -> OptionError:
    """Return the error about a URL that cannot be read, without any part of the URL."""
    return OptionError(
        f"exclusive_store: cannot understand this {scheme(url)}:// URL: percent-encode what is special "
        "in its password ('/' is %2F, '@' is %40, '#' is %23, ';' is %3B), and give port and timeouts as "
        "numbers"
    )


def place(options: Mapping[str, Any]) -> str:
    """Return the server and the database that a connection with these options of redis-py leads to.

    "": they name none, as behind Sentinel.
    """
    if path := options.get("path"):
        return f"{path}?virtual_host={options['db']}"
    host = str(options.get("host", "")).lower()
    return host and f"{'localhost' if host in LOOPBACK else host}:{options['port']}/{options['db']}"


def _is_misread(parts: SplitResult) -> bool:
    """Whether a password with / # or ? was read as another part of the URL."""
    login = parts.netloc and "@" in parts.path
    query = [item for item in parts.query.split("&") if not item.startswith(_MAY_HAVE_AT)]
    return bool(login or parts.fragment or any("@" in item for item in query))


def _parse(parts: SplitResult, scheme: str) -> Address:
    query = dict(parse_qsl(parts.query))
    _refuse_misspelt(query)
    is_socket, is_tls = scheme == "redis+socket", scheme == "rediss"
    path = unquote(parts.path)
    database = query.get("virtual_host") or query.get("db") or ("" if is_socket else path)
    user = unquote(parts.username or query.get("username", ""))
    options: dict[str, Option] = {
        "db": _number(database.strip("/"), _DATABASE),
        "username": user or None,
        "password": unquote(parts.password or "") or query.get("password") or None,
        "socket_timeout": _seconds(query, "socket_timeout"),
        "socket_connect_timeout": _seconds(query, "socket_connect_timeout"),
    }
    if is_socket:
        if not path.strip("/"):
            raise OptionError("exclusive_store: name the socket file, as in redis+socket:///run/redis.sock")
        options["path"] = path
        place = f"{path}?virtual_host={options['db']}"
    else:
        options["host"] = parts.hostname or "localhost"
        options["port"] = parts.port or 6379
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else options["host"]
        place = f"{host}:{options['port']}/{options['db']}"
    if is_tls:
        options.update(tls.options(query))
    secret = f"{user}:**@" if options["password"] else "**@" if user else ""  # maybe one without its colon
    shown = printable(f"{parts.scheme}://{secret}{place}")
    replicas = _number(query.get("replicas", ""), "replicas= of a Redis URL is a number, as in ?replicas=1")
    return Address(shown, is_socket, is_tls, options, replicas)


def _refuse_misspelt(query: Mapping[str, str]) -> None:
    """Refuse a name that is nearly one of ours, since a misspelt option would silently have no effect."""
    for name in query:
        ours = closest(name, _NAMES, _ALIKE)
        if ours and name not in _NAMES:
            raise OptionError(f"exclusive_store: there is no option {name}: did you mean {ours!r}?")


def _seconds(query: Mapping[str, str], name: str) -> float:
    seconds = float(query.get(name, TIMEOUT))
    if not 0 < seconds <= _LONGEST_TIMEOUT:
        raise OptionError(
            f"exclusive_store: {name}={query[name]} of a Redis URL must be a number of seconds above 0, "
            f"at most {_LONGEST_TIMEOUT}. Leave it out for {TIMEOUT:g}"
        )
    return seconds


def _number(text: str, rule: str) -> int:
    if text and not text.isdecimal():
        raise OptionError(f"exclusive_store: {rule}")
    return int(text or 0)
