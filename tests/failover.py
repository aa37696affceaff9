"""A Redis with replicas, and the sentinels that watch it: what a failover needs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain

from typing_extensions import Self

from tests.proxy import Proxy
from tests.sentinel import SentinelServer
from tests.servers import RedisServer, wait_until

_LIMIT = 60
"""Seconds that anything here may take on a busy machine."""
_PERIODS = {
    "INFO-PERIOD": 300,
    "PING-PERIOD": 100,
    "ASK-PERIOD": 100,
    "PUBLISH-PERIOD": 200,
    "MIN-LINK-RECONNECT-PERIOD": 200,
    "ELECTION-TIMEOUT": 1500,
}
"""Milliseconds; sentinels take up to ten seconds for these steps otherwise."""
NAME = SentinelServer.name


@dataclass(eq=False)
class Node:
    """A Redis, and the network by which all others but its own clients reach it."""

    server: RedisServer
    network: Proxy

    def announce(self) -> None:
        with self.server.client() as client:
            client.config_set("replica-announce-ip", "127.0.0.1")
            client.config_set("replica-announce-port", self.network.port)

    def follow(self, primary: Node) -> None:
        with self.server.client() as client:
            client.replicaof("127.0.0.1", str(primary.network.port))

    def offset(self) -> int:
        with self.server.client() as client:
            facts = client.info("replication")
            return -1 if facts.get("master_link_status") == "down" else int(facts["master_repl_offset"])


class Watched:
    """A primary with replicas and three sentinels.

        with Watched() as watched:
            store = open_store(watched.url)
            watched.fail_over()
            watched.repair()

    A server is down when it has been silent for `down_after` seconds; `options` are those of the servers.
    """

    def __init__(self, replicas: int = 2, down_after: float = 0.7, **options: str) -> None:
        self._stack = ExitStack()
        self._down_after = down_after
        try:
            self.nodes = [self._start_node(options) for _ in range(1 + replicas)]
            for node in self.nodes[1:]:
                node.follow(self.nodes[0])
            first = self.nodes[0].network.port
            self.sentinels = [self._start_sentinel(first) for _ in range(3)]
            self.repair()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        places = ";".join(f"sentinel://127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"{places}/0?master_name={NAME}"

    @property
    def primary(self) -> Node:
        """The one that the sentinels name, as soon as they agree."""
        named: list[int] = []

        def agree() -> bool:
            named[:] = [self._named(sentinel) for sentinel in self.sentinels]
            return len(set(named)) == 1

        wait_until(agree, "sentinels that agree", _LIMIT)
        return next(node for node in self.nodes if node.network.port == named[0])

    @property
    def replicas(self) -> list[Node]:
        primary = self.primary
        return [node for node in self.nodes if node is not primary]

    def wait_for_another_primary(self, than: Node) -> Node:
        wait_until(lambda: self.primary is not than, "another primary", _LIMIT)
        primary = self.primary

        def is_promoted() -> bool:
            with primary.server.client() as client:
                return bool(client.role()[0] == b"master")

        wait_until(is_promoted, "its promotion", _LIMIT)
        return primary

    def fail_over(self, how: str = "killed") -> Node:
        """Let another one take over from a primary that is "killed", "silent", or lives on: "in order"."""
        before = self.primary
        if how == "killed":
            before.server.kill()
        elif how == "silent":
            before.server.pause()
        else:
            with self.sentinels[0].client() as client:
                client.execute_command("SENTINEL", "FAILOVER", NAME)
        return self.wait_for_another_primary(before)

    def catch_up(self) -> None:
        """Wait until the replicas have all that the primary has."""
        primary = self.primary
        for node in self.nodes:
            wait_until(lambda node=node: node.offset() >= primary.offset(), "the replicas", _LIMIT)  # type: ignore[misc]

    def repair(self) -> None:
        """Have all servers up again, and the sentinels know them."""
        primary = self.primary
        for node in self.nodes:
            node.network.restore()
            node.server.resume()
            if not node.server.is_up:
                node.server.start()
            with node.server.client() as client:
                client.execute_command("ACL", "SETUSER", "default", "+@all")
            if node is not primary:
                node.announce()
                node.follow(primary)
        self.catch_up()
        wait_until(lambda: all(map(self._knows_all, self.sentinels)), "the sentinels to know", _LIMIT)

    def _start_node(self, options: dict[str, str]) -> Node:
        server = self._stack.enter_context(
            RedisServer(appendonly=False, **{"repl-diskless-sync-delay": "0", **options})
        )
        node = Node(server, self._stack.enter_context(Proxy(server.port)))
        node.announce()
        return node

    def _start_sentinel(self, primary: int) -> SentinelServer:
        options = {
            "down-after-milliseconds": str(round(self._down_after * 1000)),
            "failover-timeout": "1500",
        }
        sentinel = self._stack.enter_context(SentinelServer(primary, quorum=2, **options))
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "DEBUG", *chain(*_PERIODS.items()))
        return sentinel

    def _named(self, sentinel: SentinelServer) -> int:
        with sentinel.client() as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def _knows_all(self, sentinel: SentinelServer) -> bool:
        with sentinel.client() as client:
            replicas, others = (
                client.sentinel_slaves(NAME),
                client.sentinel_sentinels(NAME),
            )
        good = [each for each in replicas if each["flags"] == "slave" and each["master-link-status"] == "ok"]
        named = {int(each["port"]) for each in good}
        return named == {node.network.port for node in self.replicas} and len(others) == 2
