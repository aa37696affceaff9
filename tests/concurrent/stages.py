"""The stages: one for each store, with a server of its own."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from tests.cluster import RedisCluster, slot_of
from tests.concurrent.stage import PAUSE, Server, Stage, Trouble
from tests.failover import Watched
from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.postgres import PostgresServer, PostgresStandby
from tests.servers import RedisServer, wait_until


class Redis(Server):
    """A Redis that writes each command to its file before it answers."""

    repeats_alone = True
    settles = True

    @staticmethod
    def make_server() -> RedisServer:
        return RedisServer(appendonly=True, appendfsync="no")

    def url_of(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def troubles(self) -> dict[str, Trouble]:
        return {**super().troubles(), "emptied": self.empty}

    def ping(self) -> None:
        with self.server.client() as client:
            client.ping()

    def empty(self) -> None:
        self.lose(lambda: self.server.restart(keep_data=False), is_total=True)

    def sent(self, name: str) -> list[str] | None:
        return None if self.losses else list_of(self.server, name)


def list_of(server: RedisServer, name: str) -> list[str]:
    with server.client() as client:
        return [message.decode() for message in client.lrange(name, 0, -1)]


class Memcached(Server):
    has_line = False
    pushes = False
    loses_all = True
    make_server = MemcachedServer

    def url_of(self, port: int) -> str:
        return f"memcached://127.0.0.1:{port}"


class Postgres(Server):
    skips_locked = True
    make_server = PostgresServer
    clients: ClassVar = """SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""

    def url_of(self, port: int) -> str:
        return str(self.server.url_of("tests", port))

    def repair(self) -> None:
        """Wait for the ends of all transactions: that of a call without an answer may still lock a key."""
        wait_until(lambda: self.server.ask(self.clients) == [(0,)], "the ends of its connections", 30)
        self.settled.append(time.monotonic_ns() // 1000)


class Maria(Postgres):
    locks_next = True
    make_server = MariaServer
    clients = """SELECT count(*) FROM information_schema.processlist
        WHERE command <> 'Daemon' AND id <> connection_id()"""


class Sentinel(Stage):
    """A Redis with two replicas and three sentinels. A replica may not have all when it is promoted."""

    repeats_alone = True
    settles = True
    patience = 0.5
    troubles_at_once = 1

    def start(self) -> None:
        self.watched = self.servers.enter_context(Watched())
        self.url = self.watched.url

    def troubles(self) -> dict[str, Trouble]:
        return {"killed": lambda: self.fail_over("killed"), "silent": lambda: self.fail_over("silent")}

    def fail_over(self, how: str) -> None:
        self.lose(lambda: self.watched.fail_over(how), is_total=False)

    def ping(self) -> None:
        with self.watched.primary.server.client() as client:
            client.ping()

    def sent(self, name: str) -> list[str] | None:
        return None if self.losses else list_of(self.watched.primary.server, name)

    def repair(self) -> None:
        """A silent server would answer again, though another one is the primary now."""
        self.watched.repair()


class Cluster(Stage):
    """A Redis Cluster of three primaries with replicas. Its slots move, and its primaries change in order.

    No replica takes over from a primary that is killed, and starts again: it might lack the last calls.
    """

    repeats_alone = True
    settles = True
    pushes = False
    troubles_at_once = 2

    def start(self) -> None:
        options = {"appendfsync": "no", "cluster-replica-no-failover": "yes"}
        self.cluster = self.servers.enter_context(RedisCluster(appendonly=True, **options))
        self.url = self.cluster.url

    def troubles(self) -> dict[str, Trouble]:
        return {"kill": self.kill, "pause": self.pause, "move": self.move, "promote": self.promote}

    def kill(self) -> None:
        node = self._owner()
        node.kill()
        node.start()
        self.repair()

    def pause(self) -> None:
        node = self._owner()
        node.pause()
        time.sleep(PAUSE)
        node.resume()

    def move(self) -> None:
        """Move the slot of a key to another node, and back."""
        slot = slot_of("one")
        owner = self.cluster.owner(slot)
        self.cluster.move(slot, self.cluster.others(slot)[0])
        self.cluster.move(slot, owner)

    def promote(self) -> None:
        self.cluster.promote_replica_of(self._owner())

    def ping(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.ask(node, "PING")

    def repair(self) -> None:
        wait_until(self.cluster.is_whole, "all nodes of the cluster", 30)

    def _owner(self) -> RedisServer:
        return self.cluster.owner(slot_of("one"))


class Standby(Stage):
    """A PostgreSQL with a standby that takes over. `is_synchronous`: it has all that was confirmed."""

    skips_locked = True
    troubles_at_once = 1
    is_synchronous: ClassVar = False

    def start(self) -> None:
        self.primary: PostgresServer = self.servers.enter_context(PostgresServer())
        self.standby = self.servers.enter_context(PostgresStandby(self.primary))
        self._begin()

    def _begin(self) -> None:
        hosts = f"host=127.0.0.1:{self.standby.port}&host=127.0.0.1:{self.primary.port}"
        self.url = f"postgresql://tests@/{self.primary.name}?{hosts}&target_session_attrs=read-write"
        self._wait_for_standby("*" if self.is_synchronous else "")
        self.standby.catch_up()

    def _wait_for_standby(self, names: str) -> None:
        """Let the primary confirm what standbys of these names have."""
        primary = self.standby if self.standby.is_primary() else self.primary
        primary.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        primary.ask("SELECT pg_reload_conf()")

    def troubles(self) -> dict[str, Trouble]:
        return {"failover": self.fail_over}

    def fail_over(self) -> None:
        if self.is_synchronous:
            self.promote_standby()
        else:
            self.lose(self.promote_standby, is_total=False)

    def promote_standby(self) -> None:
        if not self.is_synchronous:
            self.standby.fall_behind()
        self.primary.kill()
        self.standby.promote()
        self._wait_for_standby("")

    def repair(self) -> None:
        """Let the new primary have a standby."""
        if self.standby.is_primary():
            self.primary.close()
            self.primary = self.standby
            self.standby = self.servers.enter_context(PostgresStandby(self.primary))
            self._begin()


class SynchronousStandby(Standby):
    is_synchronous = True


class Sqlite(Stage):
    """A file. Another program may write to it for a while."""

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="concurrent-"))
        self.servers.callback(shutil.rmtree, self.folder)
        self.url = f"sqlite:///{self.folder}/locks.db"

    def troubles(self) -> dict[str, Trouble]:
        return {"locked": self.lock}

    def lock(self) -> None:
        with closing(sqlite3.connect(self.folder / "locks.db", timeout=5, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            self.begun = time.monotonic_ns() // 1000
            time.sleep(PAUSE / 4)
            other.execute("ROLLBACK")


class Memory(Stage):
    """The memory of one process, whose threads are the clients."""

    def start(self) -> None:
        self.url = f"memory://{random.random()}"


STAGES: dict[str, type[Stage]] = {
    "memory": Memory,
    "sqlite": Sqlite,
    "redis": Redis,
    "sentinel": Sentinel,
    "cluster": Cluster,
    "postgres": Postgres,
    "standby": Standby,
    "synchronous": SynchronousStandby,
    "maria": Maria,
    "memcached": Memcached,
}
