"""The store of sentinel:// URLs: the Redis that its sentinels name as the present primary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from celery_exclusive.display import printable
from celery_exclusive.errors import OptionError, StoreUnavailable, did_you_mean
from celery_exclusive.stores.redis import address
from celery_exclusive.stores.redis.client import Client, Connection, round_trip, text_of
from celery_exclusive.stores.redis.next_steps import HINTS
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.stores.redis.witness import Witness
from celery_exclusive.system.deadline import at_most

from redis import Redis, exceptions  # isort: skip - `client` has said what is missing

_PORT: Final = 26379
_PATIENCE: Final = 1.0
"""Seconds for which a sentinel may be silent, unless sentinel_kwargs say otherwise."""
_NAME: Final = (
    "have its certificate issued for the address that the sentinels announce, or let them announce its name "
    "(resolve-hostnames and announce-hostnames)"
)


class SentinelStore(RedisStore):
    """A store on the primary that the sentinels of its URL name."""

    def connect(self, url: str) -> Client:
        return SentinelClient(url, self._witness)


class SentinelClient(Client):
    """A client that asks the sentinels for the address of each new connection, and keeps none.

    A connection that is lost, or that leads to a server that is a replica by now, is replaced by a new one.
    """

    hints: Mapping[str, str] = {
        **HINTS,
        **dict.fromkeys(("READONLY", "MASTERDOWN"), "a failover is under way: wait until it is over"),
        **dict.fromkeys(("Hostname mismatch", "IP address mismatch", "doesn't match"), _NAME),
    }
    begin_tls = "name the authority that issued its certificate, as ssl_ca_certs in its URL"

    def __init__(self, url: str, witness: Witness | None) -> None:
        self._sentinels = parse(url)
        super().__init__(address.parse(self._sentinels.servers), witness)
        self.url = self._sentinels.shown

    def _options(self) -> dict[str, address.Option]:
        host, port = self._sentinels.find_primary()
        return {**super()._options(), "host": host, "port": port}

    def _greet(self, connection: Connection) -> None:
        role, *_ = round_trip(connection, ("ROLE",))
        if role != b"master":
            raise exceptions.ReadOnlyError("the server that the sentinels name is a replica")
        super()._greet(connection)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels of a URL. The one that answered last is asked first.

    * `shown`: the URL without its password. `servers`: the URL of the watched servers, without the host.
    * `options`: the options of redis-py's connections to sentinels.
    * `others`: the number of other sentinels that a sentinel must see to be believed.
    """

    shown: str
    servers: str = field(repr=False)
    hosts: list[tuple[str, int]]
    name: str
    options: dict[str, Any] = field(repr=False)
    others: int

    def find_primary(self) -> tuple[str, int]:
        """Return the host and port of the present primary.

        Raises:
            StoreUnavailable: no sentinel names one.
        """
        problems = []
        for host, port in list(self.hosts):
            limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), at_most(_PATIENCE))
            options = {"protocol": 2, "retry": None, **limits, **self.options}
            try:
                with Redis(host, port, **options) as sentinel:
                    masters: Any = sentinel.sentinel_masters()
            except exceptions.RedisError as error:
                problem = f"says {text_of(error)}"
            else:
                problem = self._problem_of(state := masters.get(self.name, {}))
                if not problem:
                    # Not `sort`: it empties the list meanwhile, and another thread may read it.
                    self.hosts[:] = sorted(self.hosts, key=lambda other: other != (host, port))
                    return state["ip"], state["port"]
            problems.append(f"{host}:{port} {problem}")
        raise StoreUnavailable(
            f"store {self.shown}: no sentinel names its primary: {', '.join(problems)}. Wait until a "
            "failover is over, or correct hosts and ports, master_name and sentinel_kwargs"
        )

    def _problem_of(self, state: Mapping[str, Any]) -> str:
        """Return the reason not to believe what a sentinel says of the primary."""
        if not state:
            return f"knows no {self.name!r}"
        if state["num-other-sentinels"] < self.others:
            return f"sees {state['num-other-sentinels']} other sentinels"
        is_up = state["is_master"] and not state["is_sdown"] and not state["is_odown"]
        return "" if is_up else f"says that {self.name} is down"


def parse(url: str) -> Sentinels:
    """Read a URL as Celery does: one URL for each sentinel, with semicolons between them.

    Example:
        sentinel://:secret@host1:26379;sentinel://host2:26379/0?master_name=mymaster

    Login, database and the options `ssl_...` are for the servers; any `ssl_...` switches TLS on.
    `sentinel_kwargs` is a JSON object with options for the sentinels. A sentinel that sees fewer than
    `min_other_sentinels` is not believed.

    Raises:
        OptionError: the URL is malformed, or names no primary.
    """
    chunks = [chunk.rpartition("://")[2].partition("?") for chunk in url.strip().split(";") if chunk.strip()]
    query = "&".join(text for _, _, text in chunks if text)
    named = dict(parse_qsl(query))
    try:
        parts = [urlsplit(f"redis://{chunk}") for chunk, _, _ in chunks]
        if any(part.fragment for part in parts):  # a password with a #
            raise ValueError
        hosts = [(part.hostname or "localhost", part.port or _PORT) for part in parts]
        options = json.loads(named.get("sentinel_kwargs", "{}"))
        if not isinstance(options, dict):
            raise OptionError("exclusive_store: sentinel_kwargs is a dictionary of options of connections")
        others = int(named.get("min_other_sentinels", "0"))
    except ValueError:
        raise address.malformed(url) from None
    known = signature(Redis).parameters
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            raise OptionError(f"exclusive_store: sentinel_kwargs: redis-py has no option {option}{hint}")
    login = next((part.netloc.rpartition("@")[0] for part in parts if "@" in part.netloc), "")
    database = next((part.path for part in parts if part.path.strip("/")), "/0")
    kind = "rediss" if any(option.startswith("ssl_") for option in named) else "redis"
    servers = f"{kind}://{login}{'@' * bool(login)}sentinel{database}?{query}"
    name = named.get("master_name")
    if not name:
        raise OptionError(
            "exclusive_store: name the primary of sentinel://: set app.conf.broker_transport_options = "
            '{"master_name": "mymaster"} (or result_backend_transport_options), or end the URL with '
            "?master_name=mymaster"
        )
    secret, _, database = address.parse(servers).shown.removeprefix(f"{kind}://").rpartition("sentinel:6379")
    places = ";".join(f"{host}:{port}" for host, port in hosts)
    shown = printable(f"sentinel://{secret}{places}{database}?master_name={name}")
    return Sentinels(shown, servers, hosts, name, options, others)
