"""A store in one file, shared by processes: the stress test's yardstick where no server is needed.

It is the memory store between a load and a save, so it also puts `step` itself under stress.
"""

from __future__ import annotations

import fcntl
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from celery_exclusive.core.operations import Acquire, Release, Remove, Renew
from celery_exclusive.core.records import NEVER
from celery_exclusive.stores import base
from celery_exclusive.stores.base import Reply, Snapshot
from celery_exclusive.stores.memory import MemoryStore

KEPT = ("keys", "epoch", "fence", "version", "reaped")


class FileStore(MemoryStore):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(f"{url}#{token_hex(8)}", **options)
        self._path = Path(urlsplit(url).path)
        self._thread = threading.local()

    def apply(self, key: str, operation: Acquire | Release | Remove) -> Reply:
        with self._loaded():
            return super().apply(key, operation)

    def renew(self, leases: Sequence[tuple[str, Renew]]) -> list[bool]:
        with self._loaded():
            return super().renew(leases)

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int = NEVER) -> Reply:
        with self._loaded():
            return super().reap(limit, every, recovers_until=recovers_until)

    def inspect(self, key: str) -> Snapshot:
        with self._loaded():
            return super().inspect(key)

    def inspect_all(self, keys: Sequence[str]) -> list[Snapshot]:
        with self._loaded():
            return super().inspect_all(keys)

    def scan(self, prefix: str = "") -> Iterator[str]:
        with self._loaded():
            return super().scan(prefix)

    @contextmanager
    def _loaded(self) -> Iterator[None]:
        """A kill before the rename leaves the old state, one after it the new one."""
        if getattr(self._thread, "has_loaded", False):  # one verb does its work by another
            yield
            return
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.exists():
                for name, value in pickle.loads(self._path.read_bytes()).items():
                    setattr(self._memory, name, value)
            self._thread.has_loaded = True
            try:
                yield
            finally:
                self._thread.has_loaded = False
            new = self._path.with_suffix(".new")
            new.write_bytes(pickle.dumps({name: getattr(self._memory, name) for name in KEPT}))
            new.replace(self._path)


base._factories["pickle"] = FileStore
