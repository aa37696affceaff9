"""Reads the URL of a Redis Cluster: the nodes to start with, and how to connect to any node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.redis import address

Place = tuple[str, int]
"""Host and port of a node."""
_URL = re.compile(
    r"(?P<kind>redis|valkey)(?P<tls>s?)\+cluster://(?P<login>[^/?#]*@)?(?P<hosts>[^/?#]*)(?P<rest>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class StartNodes:
    """`shown` is the URL without password and query."""

    shown: str
    places: tuple[Place, ...]
    _before: str = field(repr=False)
    _after: str = field(repr=False)

    def url_of(self, place: Place) -> str:
        """Return the URL of one node, with the login and the options of the cluster's URL."""
        host, port = place
        return f"{self._before}{f'[{host}]' if ':' in host else host}:{port}{self._after}"


def parse(url: str) -> StartNodes:
    """Read a URL with one node or several.

    Example:
        rediss+cluster://user:secret@a.example:6379;b.example:6379?ssl_ca_certs=/etc/ssl/redis.pem

    Raises:
        OptionError: the URL is malformed, or names a database other than 0.
    """
    found = _URL.fullmatch(url.strip())
    if not found:
        raise OptionError("exclusive_store: the URL of a Redis Cluster is like redis+cluster://a:7000;b:7001")
    scheme, login, rest = f"redis{found['tls']}", found["login"] or "", found["rest"]
    hosts = found["hosts"].split(";")
    nodes = [address.parse(f"{scheme}://{login}{host}{rest}") for host in hosts]
    if any(node.options["db"] for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster has no database but 0: leave it out of the URL")
    if any(node.replicas for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster knows no replicas=: leave it out of the URL")
    secret, has_secret, _ = nodes[0].shown.partition("://")[2].rpartition("@")
    places = tuple((str(node.options["host"]), int(str(node.options["port"]))) for node in nodes)
    names = ";".join(node.shown.partition("://")[2].rpartition("@")[2].removesuffix("/0") for node in nodes)
    return StartNodes(
        f"{found['kind']}{found['tls']}+cluster://{secret}{has_secret}{names}",
        places,
        f"{scheme}://{login}",
        rest,
    )
