"""The reaper: one thread per worker that looks after keys whose holder died or whose offer nobody took."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.forking import forks_wait

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_SHORTEST = 0.8
"""Of a period: what lies at least between two sweeps."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a sweep under way."""


class Reaper:
    """Sweeps the namespace once per period, whichever worker gets it."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exclusive-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(_FAREWELL)

    def _run(self) -> None:
        trouble = notices.Trouble("the reaper cannot look for dead leases; it goes on trying")
        while not self._is_over.wait(self.installation.settings.exclusive_reap_period * _jitter()):
            with trouble, forks_wait():
                self.sweep()

    def sweep(self) -> None:
        period = self.installation.settings.exclusive_reap_period
        reply = self.installation.store.reap(every=round(_SHORTEST * period * SECOND))
        if self.installation.heartbeat:
            self.installation.heartbeat.notice_epoch(reply.epoch)


def _jitter() -> float:
    """Workers that were started together do not sweep together, and together miss no period."""
    return random.uniform(_SHORTEST, 1)
