"""The heartbeat: one thread of the worker's main process keeps the leases of all its running tasks.

A thread of the child would starve under C code that holds the GIL, a timer of the main loop in a broker
outage.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.namespace import LIFE, keep_namespace

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


class Heartbeat:
    """Renews, three times per ttl, the lease of every delivery handed to the pool.

    It does not know which of them were granted one: a refused renewal is no alarm.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.period = min(installation.settings.exclusive_ttl, LIFE) / 3
        self._deliveries: dict[str, tuple[Delivery, Callable[[], int | None]]] = {}
        self._wake_up = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="exclusive-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake_up.set()
        if self._thread:
            self._thread.join()

    def keep(self, delivery: Delivery, pid: Callable[[], int | None]) -> None:
        """Renew this delivery's lease from now on, as long as the process that `pid` tells is alive."""
        self._deliveries[delivery.token] = (delivery, pid)
        period = delivery.ttl / SECOND / 3
        if period < self.period:
            self.period = period
            self._wake_up.set()

    def drop(self, delivery: Delivery) -> None:
        self._deliveries.pop(delivery.token, None)

    def _run(self) -> None:
        trouble = notices.Trouble("leases cannot be renewed; the heartbeat goes on trying")
        while not self._stopped:
            self._wake_up.wait(self.period)
            self._wake_up.clear()
            with trouble:
                self.beat()

    def beat(self) -> None:
        living = [delivery for delivery, pid in list(self._deliveries.values()) if not is_gone(pid())]
        if living:
            self.installation.store.renew([(delivery.key, delivery.renew()) for delivery in living])
        keep_namespace(self.installation)


def is_gone(pid: int | None) -> bool:
    """Whether a child of this process has ended; with the broker down Celery does not notice."""
    if pid is None or pid == os.getpid() or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
