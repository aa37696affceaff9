"""Redis Clusters for tests: six nodes, three of them primaries, on free ports of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from redis.crc import key_slot
from typing_extensions import Self

from celery_exclusive.stores.redis.cluster import bucket_of
from tests.servers import RedisServer, wait_until

SLOTS = 16_384
OPTIONS: dict[str, Any] = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
}


def slot_of(key: str) -> int:
    """Return the slot of a key's bucket."""
    return int(key_slot(b"%d" % bucket_of(key)))


class RedisCluster:
    """Three primaries, each with a replica of the same number: `nodes[0]` and `nodes[3]`.

    with RedisCluster() as cluster:
        cluster.nodes[0].kill()

    `make` starts one of them.
    """

    def __init__(
        self,
        make: Callable[..., RedisServer] = RedisServer,
        *,
        replicas: bool = True,
        appendonly: bool = False,
        **options: Any,
    ) -> None:
        self._servers = ExitStack()
        try:
            self.nodes = [
                self._servers.enter_context(make(appendonly=appendonly, **OPTIONS, **options))
                for _ in range(6 if replicas else 3)
            ]
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """Of one node: the others are found by it."""
        return self.nodes[0].port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._servers.close()

    @property
    def url(self) -> str:
        return f"redis+cluster://{';'.join(f'127.0.0.1:{node.port}' for node in self.nodes[:2])}"

    def ask(self, node: RedisServer, *command: object) -> Any:
        with node.client(decode_responses=True) as client:
            return client.execute_command(*command)

    def primaries(self) -> list[RedisServer]:
        """The nodes that have slots now, by what the first that is up says."""
        ports = {members[0][1] for _, _, *members in self._slots()}
        return [node for node in self.nodes if node.port in ports]

    def owner(self, slot: int) -> RedisServer:
        (port,) = [members[0][1] for first, last, *members in self._slots() if first <= slot <= last]
        return next(node for node in self.nodes if node.port == port)

    def others(self, slot: int) -> list[RedisServer]:
        """The primaries that do not have this slot."""
        return [node for node in self.primaries() if node is not self.owner(slot)]

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """A replica that has all that its primary has by now."""
        with primary.client() as client:
            client.wait(1, 10_000)
            port = client.info("replication")["slave0"]["port"]
        return next(node for node in self.nodes if node.port == port)

    def lose_owner(self, slot: int, replica: RedisServer) -> None:
        """Kill the owner, and let a replica take over that may have been behind."""
        self.owner(slot).kill()
        self.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: self.owner(slot) is replica, "the new primary", 30)

    def promote_replica_of(self, primary: RedisServer) -> None:
        """Let a replica become the primary in order, without a loss, and wait until all know it."""
        replica = self.replica_of(primary)
        self.ask(replica, "CLUSTER", "FAILOVER")
        wait_until(lambda: replica in self.primaries(), "a new primary", 30)
        wait_until(self.is_whole, "a whole cluster", 30)

    def refresh(self) -> None:
        """Be whole and empty, in whatever roles, after whatever was done to the nodes."""
        for node in self.nodes:
            node.resume()
            if not node.is_up:
                node.start()
        wait_until(self.is_whole, "a whole cluster", 30)
        for node in self.primaries():
            self.ask(node, "FLUSHALL")
            self.ask(node, "SCRIPT", "FLUSH")

    def move(self, slot: int, to: RedisServer) -> None:
        """Move a slot with its data, key by key, as resharding does."""
        for _ in self.moving(slot, to):
            pass

    def moving(self, slot: int, to: RedisServer) -> Iterator[str]:
        """Move a slot; yield each name when it is to be moved next, and "" when all have been."""
        source = self.owner(slot)
        to_id, from_id = self.ask(to, "CLUSTER", "MYID"), self.ask(source, "CLUSTER", "MYID")
        self.ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", from_id)
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
        try:
            while names := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
                yield names[0]
                self.ask(source, "MIGRATE", "127.0.0.1", to.port, names[0], 0, 5000)
            yield ""
        finally:
            for name in self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
                self.ask(source, "MIGRATE", "127.0.0.1", to.port, name, 0, 5000)
            for node in (to, source, *self.primaries()):
                self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", to_id)

    def _slots(self) -> Any:
        return self.ask(next(node for node in self.nodes if node.is_up), "CLUSTER", "SLOTS")

    def _join(self) -> None:
        first, primaries = self.nodes[0], self.nodes[:3]
        step = SLOTS // 3 + 1
        for number, node in enumerate(primaries):
            last = min((number + 1) * step, SLOTS) - 1
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.ask(node, "CLUSTER", "ADDSLOTS", *range(number * step, last + 1))
        for node in self.nodes[1:]:
            self.ask(node, "CLUSTER", "MEET", "127.0.0.1", first.port)
        wait_until(self._all_know_all, "nodes that know each other", 30)
        for primary, replica in zip(primaries, self.nodes[3:], strict=False):
            self.ask(replica, "CLUSTER", "REPLICATE", self.ask(primary, "CLUSTER", "MYID"))
        wait_until(self.is_whole, "a whole cluster", 30)

    def _all_know_all(self) -> bool:
        return all(
            self.ask(node, "CLUSTER", "NODES").count("connected") == len(self.nodes)
            and "handshake" not in self.ask(node, "CLUSTER", "NODES")
            for node in self.nodes
        )

    def is_whole(self) -> bool:
        """Whether all nodes see all slots, and all replicas follow their primaries."""
        for node in self.nodes:
            if "cluster_state:ok" not in self.ask(node, "CLUSTER", "INFO"):
                return False
            slots = self.ask(node, "CLUSTER", "SLOTS")
            if any(len(members) * 3 < len(self.nodes) for _, _, *members in slots):
                return False
            with node.client() as client:
                facts = client.info("replication")
            if facts["role"] == "slave" and facts["master_link_status"] != "up":
                return False
        return True
