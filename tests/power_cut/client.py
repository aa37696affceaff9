"""A process that uses a store until the power is cut, and writes down each answer that it got.

It is told to start and to stop, and asked what it notices of the cut if it outlives that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Acquire, AcquireAlone, Granted, Parked, Release
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.keeper import Keeper
from celery_exclusive.stores.base import Store, make_store
from celery_exclusive.stores.sql.sqlite import SqliteStore
from tests import nursery

ROOT = Path(__file__).parents[2]
HOUR = 3_600_000_000
THREADS = 4
PAUSE = 0.002
MESSAGE = b"of a call that waits"


class Note(NamedTuple):
    """What was answered, or asked, at an instant of the machine's clock.

    `what`: the key is "held" by a run, or "unique" to a call that is queued; the store has taken over the
    message of a call that "waits"; a run is "ending", and has "ended".
    """

    at: float
    what: str
    key: str
    id: str


class Process(nursery.Nursery):
    """A process that makes calls until its store is gone."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        command = [sys.executable, "-m", "tests.power_cut.client"]
        super().__init__(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def open_store(url: str) -> Store:
    return make_store(url, prefix="cut", offer=HOUR, tombstone_ttl=24 * HOUR)


def read(journal: Path) -> list[Note]:
    return [Note(*json.loads(line)) for line in journal.read_text().splitlines()]


@dataclass(slots=True)
class Lease:
    """A lease for the keeper, which says of it whether it is lost."""

    _claim: Claim
    is_over: bool = False

    def renewed(self, asked: float, *, anew: bool = False) -> None: ...

    def end(self) -> None:
        self.is_over = True


class Client:
    def __init__(self, url: str, synchronous: str, journal: str) -> None:
        self.store = open_store(url)
        if isinstance(self.store, SqliteStore):
            self._set(self.store, synchronous)
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND)
        self.keeper = Keeper(self.store)
        self.leases: list[Lease] = []
        self._is_over = False
        self._threads = [Thread(target=self._work, args=(number,), daemon=True) for number in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over = True

    def notice(self) -> dict[str, Any]:
        """Make a heartbeat with the store that has come back."""
        for thread in self._threads:
            thread.join()
        beat = self.keeper.beat(self.leases, 60)
        told = sum(lease.is_over for lease in self.leases)
        return {"noticed": beat.has_lost_data, "restored": len(beat.restored), "told": told}

    def _work(self, thread: int) -> None:
        try:
            for number in count():
                if self._is_over:
                    return
                self._make(f"{thread} {number}", number % 4)
                time.sleep(PAUSE)
        except StoreUnavailable:  # the power is cut
            return

    def _make(self, key: str, kind: int) -> None:
        """Use a key of its own for a run, for a run and a call that waits, or for a queued call."""
        if kind == 0:
            self._ask(key, AcquireAlone(f"call {key}", "0", HOUR, phase="queued"), Granted)
            return self._note("unique", key, f"call {key}")
        run, token = f"run {key}", "0123456789abcdef"
        self._ask(key, Acquire(run, token, HOUR, acks_late=True, message=b"run", redelivered=True), Granted)
        self._note("held", key, run)
        if kind < 3:
            self.leases.append(Lease(Claim(key, run, token, HOUR)))
        if kind == 2:
            call = f"call {key}"
            self._ask(key, Acquire(call, "0", HOUR, message=MESSAGE, order="any"), Parked)
            self._note("waits", key, call)
        elif kind == 3:
            self._note("ending", key, run)
            self.store.apply(key, Release(run, token))
            self._note("ended", key, run)
        return None

    def _ask(self, key: str, operation: Acquire | AcquireAlone, answer: type) -> None:
        assert isinstance(self.store.apply(key, operation).answer, answer)

    def _note(self, *words: str) -> None:
        os.write(self._journal, f"{json.dumps([time.monotonic(), *words])}\n".encode())

    def _set(self, store: Any, synchronous: str) -> None:
        """Let its connections have another setting than ours."""
        connect = store._open

        def open_with() -> Any:
            opened = connect()
            opened.cursor.execute(f"PRAGMA synchronous={synchronous}")
            return opened

        store._open = open_with


def main() -> None:
    client: Client | None = None
    for verb, *words in nursery.questions():
        client = client or Client(*words)
        nursery.answer(getattr(client, verb)())


if __name__ == "__main__":
    main()
