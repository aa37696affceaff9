"""Reads the URL of a Redis Cluster: the nodes to start with, and the options for a connection to any node."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.redis import address
from celery_exclusive.stores.redis.address import Address

Place = tuple[str, int]
"""Host and port of a node."""
_URL = re.compile(
    r"(?P<kind>redis|valkey)(?P<tls>s?)\+cluster://(?P<login>[^/?#]*@)?(?P<hosts>[^/?#]*)(?P<rest>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class StartNodes:
    """The parsed URL of a cluster.

    `shown`: the URL without password and query. `first`: the address of the first of the `places`.
    """

    shown: str
    places: tuple[Place, ...]
    first: Address

    def address_of(self, place: Place) -> Address:
        """Return the address of any node, with the login and the options of the URL."""
        host, port = place
        return replace(self.first, options={**self.first.options, "host": host, "port": port})


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
    kind, tls, login, hosts, rest = found.groups(default="")
    nodes = [address.parse(f"redis{tls}://{login}{host}{rest}") for host in hosts.split(";")]
    if any(node.options["db"] for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster has no database but 0: leave it out of the URL")
    if any(node.replicas for node in nodes):
        raise OptionError("exclusive_store: a Redis Cluster knows no replicas=: leave it out of the URL")
    shown = [node.shown.partition("://")[2].removesuffix("/0") for node in nodes]
    names = ";".join([shown[0], *(name.rpartition("@")[2] for name in shown[1:])])
    places = tuple((str(node.options["host"]), int(str(node.options["port"]))) for node in nodes)
    return StartNodes(f"{kind}{tls}+cluster://{names}", places, nodes[0])
