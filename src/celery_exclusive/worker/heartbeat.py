"""The heartbeat: one thread of the worker's main process keeps the leases of all its running tasks.

A thread of the child would starve under C code that holds the GIL, a timer of the main loop in a broker
outage, a greenlet while another one computes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.claim import Claim
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Done
from celery_exclusive.forking import forks_wait
from celery_exclusive.namespace import LIFE, keep_namespace
from celery_exclusive.native import NativeThread, at_home, original
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.elsewhere import Elsewhere
from celery_exclusive.worker.endings import Ended, is_gone

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


_SOON = 1
"""Seconds until the next beat where it is not known who holds a lease, or whether the store has its data."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for a renewal under way."""


class Heartbeat:
    """Renews, three times per ttl, the lease of every delivery that is handed to a child, or granted here.

    Of the first it learns by a renewal which were granted one; that one is refused is no alarm. When the
    store has lost its data, it puts the leases back.
    """

    def __init__(self, installation: Installation, broker: str, *, is_for_children: bool) -> None:
        self.installation, self.broker, self.is_for_children = installation, broker, is_for_children
        self.period = min(installation.settings.exclusive_ttl, LIFE) / 3
        self._epoch = installation.store.epoch()
        self._elsewhere = Elsewhere(installation, self._epoch)
        self._deliveries: dict[str, tuple[Delivery, Callable[[], int | None]]] = {}
        self._held: set[Claim] = set()
        self._put_back: set[str] = set()
        self._calls: queue.SimpleQueue[bool] = original("queue", "SimpleQueue")()
        self._thread = NativeThread(self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._calls.put(False)
        self._thread.join(_FAREWELL)

    def keep(self, delivery: Delivery, pid: Callable[[], int | None]) -> None:
        """Renew this delivery's lease from now on, as long as the process that `pid` tells is alive.

        It is dropped when that is gone, or has ended the delivery, never before.
        """
        self._elsewhere.note(delivery)
        self._deliveries[delivery.token] = (delivery, pid)
        if not self.is_for_children:
            self._held.update(delivery.leases)
        period = min((claim.ttl / SECOND / 3 for claim in delivery.leases), default=self.period)
        if period < self.period:
            self.period = period
            self._calls.put(True)

    def drop(self, delivery: Delivery) -> None:
        self._deliveries.pop(delivery.token, None)
        self._put_back.discard(delivery.token)

    def finish(self, delivery: Delivery) -> None:
        """Drop a delivery that its child has ended: maybe before its lease was put back."""
        self._deliveries.pop(delivery.token, None)
        if delivery.token in self._put_back:
            self._give_back(delivery)

    def give_back_all(self) -> None:
        """Give back what the processes of the pool held, now that all of them are gone."""
        for delivery, pid in list(self._deliveries.values()):
            if pid() is None or is_gone(pid()):
                self._give_back(delivery, returns=delivery.late or pid() is None)

    def notice_epoch(self, epoch: str) -> None:
        """Beat soon, if this is another epoch of the store than that of the last beat."""
        if epoch not in ("", self._epoch):
            self._calls.put(True)

    def _run(self) -> None:
        trouble = notices.Trouble("leases cannot be renewed; the heartbeat goes on trying")
        while self._rest(min(self.period, _SOON) if trouble.lasts else self.period):
            with trouble, forks_wait():
                self.beat()

    def _rest(self, period: float) -> bool:
        """Wait until the next beat is due, soon if it has to find out who holds a lease; False: no more."""
        until = time.monotonic() + period
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                return self._calls.get(timeout=min(left, _SOON))
            if self._claims() - self._held:
                break
        return True

    def beat(self) -> None:
        store = self.installation.store
        living = [delivery for delivery, pid in list(self._deliveries.values()) if not is_gone(pid())]
        claims = [claim for delivery in living for claim in delivery.leases]
        if claims:
            found = store.renew([(claim.key, claim.renew()) for claim in claims])
            seen = {claim for claim, lives in zip(claims, found, strict=True) if lives}
            self._held = (self._held | seen) & self._claims()
        epoch = store.epoch()
        if epoch != self._epoch:
            count = sum(self._restore(delivery) for delivery in living)
            self._epoch = epoch
            notices.amnesia(self.installation, count)
        self._put_back &= self._deliveries.keys()
        keep_namespace(self.installation, self.broker)
        self._elsewhere.tell(epoch)

    def _claims(self) -> set[Claim]:
        return {claim for delivery, _ in list(self._deliveries.values()) for claim in delivery.leases}

    def _restore(self, delivery: Delivery) -> int:
        """Put back what it is known to have held; tell how many leases that were."""
        self._put_back.add(delivery.token)
        store, held = self.installation.store, [claim for claim in delivery.leases if claim in self._held]
        count = sum(store.apply(claim.key, claim.restore()).answer == Done(True) for claim in held)
        if not count:
            self._put_back.discard(delivery.token)
        elif delivery.token not in self._deliveries:  # it has ended meanwhile
            self._give_back(delivery)
        return count

    def _give_back(self, delivery: Delivery, *, returns: bool = False) -> None:
        if self.installation.endings:
            at_home(self.installation.endings.add, Ended(delivery, done=False, returns=returns))
