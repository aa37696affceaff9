"""The reaper: one thread per worker that ends the leases of dead holders, and expired offers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from operator import sub
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.operations import Applied
from celery_exclusive.core.records import NEVER, RENEWALS_PER_TTL, SECOND
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.leases.repeated_job import RepeatedJob
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
"""The seconds between two answers of the store that are no outage, also with shorter leases."""
_ASKS_PER_TTL = 6
"""The number of requests for the store's time within the shortest ttl."""
_BETWEEN_DUE = 0.05
"""The shortest pause in seconds until a key that is due soon."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a sweep under way."""


class Reaper:
    """Sweeps the namespace once per period. Each time one of the workers does it.

    After a full sweep the same worker sweeps again at once, and also when the next key is due, if that is
    soon: a rate opens at an instant. It waits until the messages that it has woken are published, so that
    they do not pile up here while their offers expire, but no longer than an offer, so that a blocking broker
    does not stop the sweeps.

    A dead run is recovered only after the store has answered for so long that all living holders have renewed
    their leases: after an outage, a pause, or a step of its clock the reaper waits.
    """

    def __init__(self, services: Services, notice_epoch: Callable[[str], object]) -> None:
        self.services, self._notice_epoch = services, notice_epoch
        tasks = services.app.tasks.values()
        options = (option for task in tasks for option in (services.exclusive(task), services.unique(task)))
        self._ttl = min(map(services.ttl, (None, *options))) / SECOND
        # The longest time between two answers in which no lease that is renewed three times can expire.
        self._longest = round(max(self._ttl / RENEWALS_PER_TTL, _NO_OUTAGE) * SECOND)
        self._is_closing, self._is_over = False, threading.Event()
        self._unreadable: set[str] = set()
        self._revoked = Revoked(services)
        self._time = 0
        # For each clock of the store: the start of its run without a gap, and its last time.
        self._since: tuple[int, ...] = ()
        self._times: tuple[int, ...] = ()
        self._thread = threading.Thread(target=self._run, name="exclusive-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Leave the sweeps to other workers, since one that stops hears of no revoked tasks."""
        self._is_closing = True

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(at_most(_FAREWELL))

    def _run(self) -> None:
        trouble = RepeatedJob("the search for expired leases")
        period = min(self.services.settings.exclusive_reap_period, self._ttl / _ASKS_PER_TTL)
        pause = period
        due_in = None
        # With jitter: workers that start together sweep apart, and together miss no period.
        while not self._is_over.wait(pause * random.uniform(_SHORTEST, 1) if due_in is None else due_in):
            is_due, due_in = due_in is not None, None
            with trouble:
                due_in = self.sweep(is_due=is_due)
            pause = period * _AFTER_OUTAGE if trouble.lasts else period

    def sweep(self, *, is_due: bool = False) -> float | None:
        """Sweep all keys that are due now; return the seconds until the next is, if that is soon."""
        settings = self.services.settings
        every = 0 if is_due else round(_SHORTEST * settings.exclusive_reap_period * SECOND)
        self._revoked.listen()
        reply = self._reap(NEVER if self._is_closing else every)
        while reply.more and not self._is_over.is_set():
            self.services.courier.wait(settings.exclusive_offer)
            reply = self._reap(0)
        return None if reply.due_in is None else max(reply.due_in / SECOND, _BETWEEN_DUE)

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
        """Return the time, by the store's clock, until which a sweep may recover dead runs. 0: not yet.

        The store has to answer without a gap until each living heartbeat has renewed its leases, and then up
        to the sweep.
        """
        calm = self.services.settings.exclusive_ttl / 2 * SECOND
        lasted = min(map(sub, self._times, self._since), default=0)
        return self._time + self._longest if lasted >= calm else 0

    def _note_answer(self, times: tuple[int, ...]) -> None:
        """Note the time of each clock of the store. All clocks have to run without a gap."""
        gaps = [now - before for before, now in zip(self._times, times, strict=False)]
        if not gaps or not all(0 <= gap <= self._longest for gap in gaps):
            self._since = times
        self._times = times

    def _log(self, key: str, problem: str) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            error = UnreadableKey(key, problem, self.services.store.url)
            notices.unreadable(error, len(self._unreadable))
