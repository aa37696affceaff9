"""The stores whose power is cut, each with a setting that says what is synced when."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from typing_extensions import Self

from tests.postgres import PostgresServer
from tests.power_cut.client import Process
from tests.power_cut.disk import Disk
from tests.servers import RedisServer


class Stage(ABC):
    """A store on a disk whose power can be cut. `url` is its address in a round, and after the cut."""

    url: str
    folder: Path
    synchronous = ""

    def __init__(self, disk: Disk, setting: str) -> None:
        self.disk, self.setting = disk, setting
        self.make()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def make(self) -> None: ...

    @abstractmethod
    def refresh(self) -> None:
        """Be up, empty, and on the disk."""

    @abstractmethod
    def end(self, client: Process) -> None:
        """End all processes that have died with the power."""

    @abstractmethod
    def start(self) -> None:
        """Be up again on a disk that needs no power."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    def outlives(self) -> bool:
        """Whether the clients are on another machine."""
        return True


class Redis(Stage):
    def make(self) -> None:
        writes = self.setting != "no file"
        self.server = RedisServer(appendonly=writes, appendfsync=self.setting if writes else "no")
        self.url, self.folder = self.server.url, self.server._directory

    def refresh(self) -> None:
        with self.disk.on():
            self.server.restart(keep_data=False)

    def end(self, client: Process) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.close()


class Postgres(Stage):
    def make(self) -> None:
        self.server = PostgresServer(synchronous_commit=self.setting)
        self.url, self.folder = self.server.url, self.server._directory / "data"

    def refresh(self) -> None:
        self.server.empty()
        self.server.stop()
        self.disk.write_back(self.folder)
        self.server._options["fsync"] = "on"
        with self.disk.on():
            self.server.start()

    def end(self, client: Process) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server._options["fsync"] = "off"
        self.server.start()

    def close(self) -> None:
        self.server.close()


class Sqlite(Stage):
    def make(self) -> None:
        self.folder, self.synchronous = Path(tempfile.mkdtemp(prefix="test-power-")), self.setting
        self.url = f"sqlite:///{self.folder}/locks.db"

    def refresh(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()

    def end(self, client: Process) -> None:
        client.kill()

    def start(self) -> None: ...

    def close(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def outlives(self) -> bool:
        return False


STAGES: dict[str, tuple[type[Stage], dict[str, bool]]] = {
    "redis": (Redis, {"no file": False, "no": False, "everysec": False, "always": True}),
    "sqlite": (Sqlite, {"OFF": False, "NORMAL": False, "FULL": True, "EXTRA": True}),
    "postgres": (Postgres, {"off": False, "local": True, "on": True}),
}
"""The settings of each store, and whether what it has answered is to be on the disk."""
