"""Unique leases that are to be given back, by one thread per process, for as long as the store is silent."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING

from celery_exclusive.core.operations import Release
from celery_exclusive.forking import forks_wait
from celery_exclusive.header import Header
from celery_exclusive.options import PERIOD

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_FIRST_PAUSE, _LONGEST_PAUSE = 1, 60
"""Seconds between attempts."""


class Debts:
    """Leases that nobody else gives back; else a key might be taken for a day.

    Of calls that got no answer and were not sent, and of messages that end where no code of their task runs.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._pid: int | None = None

    def add_message(self, id: str, header: Header) -> None:
        """Give back what the message of this task may have."""
        if header.u and header.u[1] != PERIOD:
            self.add(header.u[0], Release(f"{id}/{header.id}", header.id, done=False))

    def add(self, key: str, release: Release) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._owed: deque[tuple[str, Release]] = deque()
            self._changes, self._is_running = Lock(), False
        self._owed.append((key, release))
        with (
            self._changes,
            suppress(RuntimeError),
        ):  # no more threads: it is about to end
            if not self._is_running:
                Thread(target=self._run, name="exclusive-debts", daemon=True).start()
                self._is_running = True

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._changes:
                if not self._owed:
                    self._is_running = False
                    return
            try:
                with forks_wait():
                    self._pay()
            except Exception:  # noqa: BLE001 - it has been told, and there is another try
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE

    def _pay(self) -> None:
        key, release = self._owed[0]
        self.installation.store.apply(key, release)
        self._owed.popleft()
