"""A task as each contender would protect it, on an app of its own: for publishers, and for workers."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from bench import peers
from bench.bare import Socket
from bench.row import OURS
from bench.tally import Tally
from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import open_store
from celery_exclusive.worker.queues import note_queues

BARE_LOCK = "SET NX PX + compare-and-delete, bare socket"
OUR_CLIENT = f"{OURS}'s client alone, in the body"
OUR_CLIENT_LATE = f"{OUR_CLIENT}, late"
KEPT = f"{OURS}'s channel under a bare task"
OF_ROOM: dict[str, dict[str, Any]] = {
    "plain": {},
    "with a rate": {"rate": "1000000/m"},
    "with parts": {"per": "part"},
    "with parts of a limit and a rate": {"per": Exclusive("part", limit=2, rate="1000000/m")},
}
ONE_LINE, FAIR, TEN_A_SECOND = "one line", "in parts", "10 a second"
_MESSAGE = b"x" * 1000
"""As long as what the store keeps of a message of this task."""
LATE = {"acks_late": True, "reject_on_worker_lost": True}
OF_OURS: dict[str, dict[str, Any]] = {
    f"{OURS}, unique": {"unique": Unique("key")},
    OURS: {"exclusive": Exclusive("key")},
    f"{OURS}, late": {"exclusive": Exclusive("key"), **LATE},
    f"{OURS}, as they arrive": {"exclusive": Exclusive("key", order="arrived")},
    ONE_LINE: {"exclusive": Exclusive(key="api", limit=5)},
    FAIR: {"exclusive": Exclusive(key="fair api", limit=5, per="key")},
    TEN_A_SECOND: {"exclusive": Exclusive(key="rated api", limit=None, rate="10/s")},
    **{name: {"exclusive": Exclusive("key", limit=4, **options)} for name, options in OF_ROOM.items()},
}


def make(contender: str, broker: str, *, store: str = "", tally: str = "", **conf: Any) -> Any:
    """Return this contender's task `work(key, number, seconds)`, whose body notes its times in `tally`."""
    store = store or broker
    app = Celery("bench", broker=broker, set_as_current=False, fixups=[])
    app.conf.update({"task_ignore_result": True, "worker_hijack_root_logger": True, **conf})
    options: dict[str, Any] = {}
    if contender in OF_OURS:
        install(app).conf.exclusive_store = store
        options = OF_OURS[contender]
    elif contender in peers.UNIQUE:
        options = peers.UNIQUE[contender](app, store)
    elif contender in ("bare, late", OUR_CLIENT_LATE):
        options = LATE
    elif contender == KEPT:
        note_queues(app, keeps_client=True)
    lock = _lock(contender, store)
    times = Tally(tally) if tally else None

    @app.task(name="bench.work", shared=False, **options)
    def work(key: str, number: int = 0, seconds: float = 0, part: str = "") -> None:  # noqa: ARG001
        with lock(key):
            if times:
                times.begin(number)
            if seconds:
                time.sleep(seconds)
            if times:
                times.end(number)

    app.finalize()
    return work


def _lock(contender: str, store: str) -> peers.Lock:
    if contender in peers.LOCKS:
        return peers.LOCKS[contender](store)
    if contender == BARE_LOCK:
        return _BareLock(urlsplit(store).port or 0)
    if contender == OUR_CLIENT:
        return _ClientLock(store)
    if contender == OUR_CLIENT_LATE:
        return _ClientLock(store, {"acks_late": True, "recovers": True, "message": _MESSAGE})
    return _nothing


@contextmanager
def _nothing(_key: str) -> Generator[None]:
    yield


class _BareLock:
    """Acquires a key and releases it on a bare socket: no lock of a body can cost less."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: Socket | None = None

    @contextmanager
    def __call__(self, key: str) -> Generator[None]:
        self._socket = self._socket or Socket(self._port)  # in the child that uses it
        self._socket.acquire(key)
        yield
        self._socket.release(key)


class _ClientLock:
    """Acquires a key and releases it, without all that a worker does besides to keep a lease."""

    def __init__(self, url: str, late: dict[str, Any] | None = None) -> None:
        self._store, self._late = open_store(url), late or {}

    @contextmanager
    def __call__(self, key: str) -> Generator[None]:
        self._store.apply(key, Acquire(key, "token", 30 * SECOND, **self._late))
        yield
        self._store.apply(key, Release(key, "token"))
