"""The reaper: one thread per worker that looks after keys whose holder died or whose offer nobody took."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Done, Remove
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Reply
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.heartbeat import is_gone
from celery_exclusive.worker.parking import Post

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_WATCH = 0.02
"""Seconds between looks at a child that is about to die."""
_SHORTEST = 0.8
"""Of a period: what lies at least between two sweeps."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a message to be published. Its offer would run out."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ending that the child did not see: over once `dying`, its process, is gone; for good if `done`.

    A child that lives on, for whatever reason, is not waited for longer than its lease can last.
    """

    delivery: Delivery
    dying: int | None = None
    done: bool = True
    since: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        lapsed = time.monotonic() > self.since + self.delivery.ttl / SECOND
        return self.dying in (None, os.getpid()) or lapsed or is_gone(self.dying)


class Reaper:
    """Sweeps the namespace once per period, whichever worker gets it, and ends what a dead child left."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._endings: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._dying: list[Ended] = []
        self._post = Post(installation.app, own_connection=True)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="exclusive-reaper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._endings.put(None)
        if self._thread:
            self._thread.join(_FAREWELL)
        self._post.close()

    def end(self, ending: Ended) -> None:
        """Give back the lease, or the place in line, of a delivery that ended without its child's doing."""
        self._endings.put(ending)

    def _run(self) -> None:
        period = self.installation.settings.exclusive_reap_period
        next_sweep = time.monotonic() + period * _jitter()
        sweeping = notices.Trouble("the reaper cannot look for dead leases; it goes on trying")
        burying = notices.Trouble("the reaper cannot end what a dead child left; it goes on trying")
        while True:
            pause = _WATCH if self._dying else max(next_sweep - time.monotonic(), 0)
            with suppress(queue.Empty):
                ending = self._endings.get(timeout=pause)
                if ending is None:
                    with burying:
                        self._bury()
                    return
                self._dying.append(ending)
            with burying:
                self._bury()
            if time.monotonic() >= next_sweep:
                next_sweep = time.monotonic() + period * _jitter()
                with sweeping:
                    self.sweep()
            if burying.lasts:
                time.sleep(period)

    def sweep(self) -> None:
        period = self.installation.settings.exclusive_reap_period
        self._follow_up(self.installation.store.reap(every=round(_SHORTEST * period * SECOND)))

    def _bury(self) -> None:
        for ending in [ending for ending in self._dying if ending.is_over]:
            self._dying.remove(ending)
            try:
                self._end(ending)
            except StoreUnavailable:
                self._dying.append(ending)
                raise

    def _end(self, ending: Ended) -> None:
        store, delivery = self.installation.store, ending.delivery
        is_released = self._follow_up(store.apply(delivery.key, delivery.release(done=ending.done)))
        if ending.done and not is_released:
            self._follow_up(store.apply(delivery.key, Remove(delivery.id)))

    def _follow_up(self, reply: Reply) -> bool:
        self._post.follow_up(reply)
        return reply.answer == Done(True)


def _jitter() -> float:
    """Workers that were started together do not sweep together, and together miss no period."""
    return random.uniform(_SHORTEST, 1)
