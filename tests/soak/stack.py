"""The stacks of the soak: a broker, a store, and how they are restarted without a loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster import RedisCluster
from tests.postgres import PostgresServer
from tests.rabbit import RabbitServer
from tests.servers import RedisServer

VISIBILITY = 20
"""Seconds until a Redis broker delivers again what a dead worker had fetched."""
TTL = 6
STACKS = (
    *("redis", "redis-redis", "redis-postgres", "redis-sqlite", "redis-cluster"),
    *("rabbitmq-redis", "rabbitmq-postgres", "rabbitmq-sqlite"),
)
"""By broker and store; "redis" is both in one."""


class Stack:
    """The servers of a round; results are on a Redis of their own, which nothing happens to.

    `servers` ends them all.
    """

    def __init__(self, name: str, folder: Path, servers: ExitStack) -> None:
        self._servers = servers
        self.broker, _, store = name.partition("-")
        self.desk = servers.enter_context(RedisServer())
        self._brokers = self._start(self.broker)
        (self._url,) = [it.new_url() if isinstance(it, RabbitServer) else it.url for it in self._brokers]
        self._stores = self._start(store) if store else self._brokers
        self._store_url = self._store_url_of(store, folder)

    @property
    def conf(self) -> dict[str, Any]:
        redis = {"visibility_timeout": VISIBILITY, "unacked_mutex_expire": 2, "polling_interval": 3}
        often = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
        is_redis = self.broker == "redis"
        return {
            "broker_url": self._url,
            "broker_transport_options": {**redis, **often} if is_redis else {"confirm_publish": True},
            "exclusive_store": self._store_url,
            "exclusive_ttl": TTL,
            "exclusive_offer": 1,
            "exclusive_reap_period": 0.3,
            "exclusive_queued_ttl": 60,
        }

    def outages(self) -> dict[str, Callable[[], None]]:
        """Return what stops a server and starts it again with its data, by the servers' names."""
        found = {"broker and store" if self._stores is self._brokers else "broker": self._brokers}
        found |= {"store": self._stores[:1]} if self._stores is not self._brokers and self._stores else {}
        return {name: lambda server=servers[0]: _restart(server) for name, servers in found.items()}  # type: ignore[misc]

    def messages(self) -> int:
        """Return how many the broker has: in the queue, and delivered and not acknowledged."""
        (server,) = self._brokers
        if isinstance(server, RabbitServer):
            return server.messages(self._url, "lab")
        with server.client() as client:
            return int(client.llen("lab")) + int(client.hlen("unacked"))

    def _start(self, kind: str) -> list[Any]:
        if kind == "cluster":
            self._cluster = self._servers.enter_context(RedisCluster(replicas=False, appendonly=True))
            return self._cluster.nodes
        makers: dict[str, Callable[[], Any]] = {
            "redis": lambda: RedisServer(appendonly=True, appendfsync="always"),
            "rabbitmq": RabbitServer,
            "postgres": PostgresServer,
        }
        return [self._servers.enter_context(makers[kind]())] if kind in makers else []

    def _store_url_of(self, kind: str, folder: Path) -> str:
        if kind == "sqlite":
            return f"sqlite:///{folder}/locks.db"
        return self._cluster.url if kind == "cluster" else str(self._stores[0].url)


def _restart(server: Any) -> None:
    server.kill() if isinstance(server, RedisServer) else server.stop()
    server.start()
