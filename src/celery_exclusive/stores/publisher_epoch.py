"""The epoch of a publisher's store, by which workers notice that it is not theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery_exclusive.stores.base import Store
from celery_exclusive.system.threads import NativeThread

_LIFE = 60
"""Seconds after which it is read again: a store that has lost its data has a new epoch."""
_LONGEST_WAIT = 0.5


class PublisherEpoch:
    """The epoch of a store, read when a process publishes, at most once a minute.

    Publishing does not depend on the store: without an answer within half a second it is not known yet.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._epoch: str | None = None
        self._pid, self._asked = 0, 0.0

    def read(self) -> str | None:
        """Return the store's epoch; None if it is unknown."""
        now = time.monotonic()
        if self._pid != os.getpid() or now >= self._asked + _LIFE:
            self._pid, self._asked = os.getpid(), now  # first: other threads need not read it too
            try:
                store = self._store()  # opened here: no lock of an import is held in a thread beside a fork
                asking = NativeThread(lambda: self._ask(store))
                asking.start()
            except Exception:  # noqa: BLE001 - no store, or no more threads: messages are sent without it
                self._epoch = None
            else:
                asking.join(_LONGEST_WAIT)
        return self._epoch

    def _ask(self, store: Store) -> None:
        try:
            self._epoch = store.epoch()
        except Exception:  # noqa: BLE001 - whatever it is, messages are sent without it
            self._epoch = None
