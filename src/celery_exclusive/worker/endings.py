"""Endings that are still to be told to the store: one thread per process tells each, until it is heard."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.forking import forks_wait
from celery_exclusive.options import PERIOD
from celery_exclusive.worker.delivery import Delivery

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_WATCH = 0.02
"""Seconds between looks at a child that is about to die."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for what has ended to be told."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ending that is over once `dying`, its process, is gone; for good if `done`.

    If its message `returns`, that keeps its unique key.
    """

    delivery: Delivery
    dying: int | None = None
    done: bool = True
    returns: bool = False

    @property
    def is_over(self) -> bool:
        return self.dying in (None, os.getpid()) or is_gone(self.dying)


def is_gone(pid: int | None) -> bool:
    """Whether a child of this process has ended; with the broker down Celery does not notice."""
    if pid is None or pid == os.getpid() or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class Endings:
    """Gives back the lease, or the place in line, of deliveries that ended without doing so.

    Those of dead children in the main process; and in any process those that ended while the store did not
    answer: of a message that had come again a copy is in line, and would run once more.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._pid: int | None = None

    def start(self) -> None:
        self._pid = os.getpid()
        self._new: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._open: list[Ended] = []
        self._thread = threading.Thread(target=self._run, name="exclusive-endings", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._new.put(None)
        self._thread.join(_FAREWELL)

    def add(self, ending: Ended) -> None:
        if self._pid != os.getpid():  # a child, which has only copies of its parent's
            self.start()
        self._new.put(ending)

    def _run(self) -> None:
        trouble = notices.Trouble("what has ended cannot be given back; the worker goes on trying")
        pause: float | None = None
        goes_on = True
        while goes_on:
            with suppress(queue.Empty):
                ending = self._new.get(timeout=pause)
                if ending:
                    self._open.append(ending)
                goes_on = ending is not None
            with trouble, forks_wait():
                self._tell()
            pause = _WATCH if self._open else None
            if trouble.lasts:
                pause = self.installation.settings.exclusive_reap_period

    def _tell(self) -> None:
        for ending in [ending for ending in self._open if ending.is_over]:
            self._open.remove(ending)
            try:
                self._give_back(ending)
            except StoreUnavailable:
                self._open.append(ending)
                raise

    def _give_back(self, ending: Ended) -> None:
        store, delivery = self.installation.store, ending.delivery
        if self.installation.heartbeat:
            self.installation.heartbeat.drop(delivery)
        if delivery.x:
            store.apply(delivery.x.key, delivery.x.release(done=ending.done))
        if delivery.u and delivery.u.until != PERIOD:
            if ending.returns:
                store.apply(delivery.u.claim.key, delivery.u.release_for_queue())
            else:
                for claim in delivery.u.claims:
                    store.apply(claim.key, claim.release(done=ending.done))
