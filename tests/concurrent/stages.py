"""The stages of rounds: a store with its server, and the trouble that the server can have."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from tests.concurrent.calls import Call, Loss, NewEpoch
from tests.failover import Watched
from tests.maria import MariaServer
from tests.memcached import MemcachedServer
from tests.postgres import PostgresServer, PostgresStandby
from tests.proxy import Proxy
from tests.servers import RedisServer

PAUSE = 0.4
"""Seconds for which a server stands still."""
Trouble = Callable[[], None]


class Stage:
    """A store that several clients can use.

    * `has_line`, `skips_locked`, `repeats_alone`: see `Round`, `Search` and `Specification`.
    * `patience`: the seconds after which a client gives a call up.
    * `troubles_at_once`: in one round.
    * `losses`: what the server has lost, as calls of the history.
    """

    has_line: ClassVar = True
    skips_locked: ClassVar = False
    repeats_alone: ClassVar = False
    patience: ClassVar = 1.0
    troubles_at_once: ClassVar = 3
    url: str

    def __init__(self) -> None:
        self.servers = ExitStack()
        self.losses: list[tuple[Loss, int, int, int]] = []
        try:
            self.start()
        except BaseException:
            self.servers.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.servers.close()

    def start(self) -> None:
        """Start the servers, and set `url`."""

    def troubles(self) -> dict[str, Trouble]:
        """What may happen to the server, by name. Each ends with a server that works."""
        return {}

    def repair(self) -> None:
        """Have all servers up again, after a round."""

    def history(self, keys: Iterator[str] | list[str]) -> list[Call]:
        """What has happened to the data of each key."""
        calls = []
        for loss, begin, since, end in self.losses:
            for key in keys:
                calls.append(Call(client=-1, key=key, operation=loss, begin=begin, since=since, end=end))
                calls.append(Call(client=-1, key=key, operation=NewEpoch(), begin=begin, since=since))
        return calls

    def lose(self, trouble: Trouble, *, is_total: bool) -> None:
        """Note that the server loses data meanwhile."""
        since, begin = time.time_ns() // 1000, time.monotonic_ns() // 1000
        trouble()
        self.losses.append((Loss(is_total), begin, since, time.monotonic_ns() // 1000))


class Server(Stage):
    """A store on one server, behind a network that can be cut."""

    make: ClassVar[Callable[[], Any]]
    loses_all: ClassVar = False

    def start(self) -> None:
        self.server = self.servers.enter_context(type(self).make())
        self.network = self.servers.enter_context(Proxy(self.server.port))
        self.url = self.url_of(self.network.port)

    def url_of(self, port: int) -> str:
        raise NotImplementedError

    def troubles(self) -> dict[str, Trouble]:
        return {
            "kill": self.kill,
            "pause": self.pause,
            "cut": self.cut,
            "lost answers": self.lose_answers,
            "late requests": self.delay_requests,
            "silence": self.silence,
        }

    def kill(self) -> None:
        def restart() -> None:
            self.server.kill()
            self.server.start()

        if self.loses_all:
            self.lose(restart, is_total=True)
        else:
            restart()

    def pause(self) -> None:
        self.server.pause()
        time.sleep(PAUSE)
        self.server.resume()

    def cut(self) -> None:
        self.network.cut()
        self.network.restore()

    def lose_answers(self) -> None:
        """Let the server do what a few requests say, and close their connections instead of an answer."""
        for _ in range(6):
            met = len(self.network.met)
            self.network.lose(b"")
            _wait(lambda: len(self.network.met) > met)  # noqa: B023 - it is called at once
        self.network.restore()

    def delay_requests(self) -> None:
        """Let a few requests arrive when their clients have given them up."""
        met = len(self.network.met)
        for _ in range(3):
            self.network.withhold(b"")
        _wait(lambda: len(self.network.met) >= met + 3)
        self.network.deliver()
        _wait(lambda: not self.network.is_on_its_way)
        self.network.restore()

    def silence(self) -> None:
        """Let the server do all requests, and lose its answers for a while."""
        self.network.drop(replies=True)
        time.sleep(PAUSE)
        self.network.restore()


def _wait(is_so: Callable[[], bool], seconds: float = 3) -> None:
    """Wait for it, unless the clients are done before."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.005)


class Redis(Server):
    """A Redis that writes each command to its file before it answers."""

    repeats_alone = True

    @staticmethod
    def make() -> RedisServer:
        return RedisServer(appendonly=True, appendfsync="no")

    def url_of(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def troubles(self) -> dict[str, Trouble]:
        return {**super().troubles(), "emptied": self.empty}

    def empty(self) -> None:
        self.lose(lambda: self.server.restart(keep_data=False), is_total=True)


class Memcached(Server):
    has_line = False
    loses_all = True
    make = MemcachedServer

    def url_of(self, port: int) -> str:
        return f"memcached://127.0.0.1:{port}"


class Postgres(Server):
    skips_locked = True
    make = PostgresServer

    def url_of(self, port: int) -> str:
        return str(self.server.url_of("tests", port))


class Maria(Postgres):
    make = MariaServer


class Sentinel(Stage):
    """A Redis with two replicas and three sentinels. A replica may not have all when it is promoted."""

    repeats_alone = True
    patience = 0.5
    troubles_at_once = 1

    def start(self) -> None:
        self.watched = self.servers.enter_context(Watched())
        self.url = self.watched.url

    def troubles(self) -> dict[str, Trouble]:
        return {"killed": lambda: self.fail_over("killed"), "silent": lambda: self.fail_over("silent")}

    def fail_over(self, how: str) -> None:
        self.lose(lambda: self.watched.fail_over(how), is_total=False)

    def repair(self) -> None:
        """A silent server would answer again, though another one is the primary now."""
        self.watched.repair()


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
            self._fail_over()
        else:
            self.lose(self._fail_over, is_total=False)

    def _fail_over(self) -> None:
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
    "postgres": Postgres,
    "standby": Standby,
    "synchronous": SynchronousStandby,
    "maria": Maria,
    "memcached": Memcached,
}
