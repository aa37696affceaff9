"""The reaper: one thread per worker that ends the leases of dead holders, and expired offers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import cached_property
from operator import sub
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.operations import Applied
from celery_exclusive.core.records import RENEWALS_PER_TTL, SECOND
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.leases.trouble import Trouble
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.worker.revoked import Revoked

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Reply

_SHORTEST = 0.8
"""The shortest pause between two sweeps, as a part of the period."""
_AFTER_OUTAGE = 3
"""Periods between two attempts while the store does not answer: when it does, releases must come first."""
_NO_OUTAGE = 2
"""Seconds between two answers of the store that are no outage, however short the leases are."""
_ASKS_PER_TTL = 6
"""How often the store is asked what time it is."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a sweep under way."""


class Reaper:
    """Sweeps the namespace once per period, whichever worker gets it.

    While a sweep finds as many dead keys as it may look after, the same worker goes on with the next one: the
    others see that somebody sweeps. It waits until the messages that it has woken are published, so that they
    do not pile up here while their offers expire; but not longer than an offer, so that a broker that blocks
    does not keep the keys from being looked after.

    A dead run is recovered only when the store has answered for so long that all who live have renewed their
    leases: after an outage, a pause, or a step of its clock it waits.

    Parameters:
        notice_epoch: is told the epoch of the store that each sweep shows.
    """

    def __init__(self, services: Services, notice_epoch: Callable[[str], object]) -> None:
        self.services, self._notice_epoch = services, notice_epoch
        self._is_over = threading.Event()
        self._unreadable: set[str] = set()
        self._revoked = Revoked(services)
        self._time = 0
        # By each clock of the store: since when it has run on without a gap, and what it said last.
        self._since: tuple[int, ...] = ()
        self._times: tuple[int, ...] = ()
        self._thread = threading.Thread(target=self._run, name="exclusive-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(at_most(_FAREWELL))

    def _run(self) -> None:
        trouble = Trouble("the search for expired leases")
        period = min(self.services.settings.exclusive_reap_period, self._ttl / _ASKS_PER_TTL)
        while not self._is_over.wait(period * _jitter() * (_AFTER_OUTAGE if trouble.lasts else 1)):
            with trouble:
                self.sweep()

    def sweep(self) -> None:
        """Look after everything that is due by now."""
        settings = self.services.settings
        every = round(_SHORTEST * settings.exclusive_reap_period * SECOND)
        self._revoked.listen()
        while self._reap(every).more and not self._is_over.is_set():
            self.services.courier.wait(settings.exclusive_offer)
            every = 0

    def _reap(self, every: int) -> Reply:
        with forks_wait():
            reply = self.services.store.reap(every=every, recovers_until=self._recovers_until)
            self._time = reply.time
            self._note_answer(reply.times or (reply.time,))
            for key, problem in reply.unreadable:
                self._log(key, problem)
            self._notice_epoch(reply.epoch)
            if reply.answer == Applied(True):  # another worker searches, if it sweeps
                self._revoked.recall()
            return reply

    @property
    def _recovers_until(self) -> int:
        """Return until when, by the store's clock, a sweep may recover dead runs; 0: not yet.

        The store has to answer without a gap until each living heartbeat has renewed its leases, and then up
        to the sweep.
        """
        calm = self.services.settings.exclusive_ttl / 2 * SECOND
        lasted = min(map(sub, self._times, self._since), default=0)
        return self._time + self._longest if lasted >= calm else 0

    @cached_property
    def _ttl(self) -> float:
        """The shortest ttl of a lease here, in seconds."""
        services = self.services
        tasks = services.app.tasks.values()
        options = [option for task in tasks for option in (services.exclusive(task), services.unique(task))]
        ttls = [services.ttl(option) / SECOND for option in options if option]
        return min([services.settings.exclusive_ttl, *ttls])

    @property
    def _longest(self) -> int:
        """The longest time between two answers after which all leases live that are renewed three times."""
        return round(max(self._ttl / RENEWALS_PER_TTL, _NO_OUTAGE) * SECOND)

    def _note_answer(self, times: tuple[int, ...]) -> None:
        """Note what time it is by each clock of the store: all have to run on without a gap."""
        gaps = [now - before for before, now in zip(self._times, times, strict=False)]
        if not gaps or not all(0 <= gap <= self._longest for gap in gaps):
            self._since = times
        self._times = times

    def _log(self, key: str, problem: str) -> None:
        """Log a key whose data are damaged, once."""
        if key not in self._unreadable:
            self._unreadable.add(key)
            error = UnreadableKey(key, problem, self.services.store.url)
            notices.unreadable(error, len(self._unreadable))


def _jitter() -> float:
    """Workers that were started together do not sweep together, and together miss no period."""
    return random.uniform(_SHORTEST, 1)
