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
        self._owed: deque[tuple[str, Release]] = deque()
        self._changes = Lock()
        self._runs_in: int | None = None

    def add_message(self, id: str, header: Header) -> None:
        """Give back what the message of this task may have."""
        if header.u and header.u[1] != PERIOD:
            self.add(header.u[0], Release(f"{id}/{header.id}", header.id, done=False))

    def add(self, key: str, release: Release) -> None:
        """A child that is forked gives back what it has inherited, too, which does no harm."""
        self._owed.append((key, release))
        with forks_wait(), self._changes, suppress(RuntimeError):  # no more threads: it is about to end
            if self._runs_in != os.getpid():
                Thread(target=self._run, name="exclusive-debts", daemon=True).start()
                self._runs_in = os.getpid()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                with forks_wait():
                    if not self._give_back():
                        return
            except Exception:  # noqa: BLE001 - it has been told, and there is another try
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE

    def _give_back(self) -> bool:
        """Give back one; False: there is none, and this thread ends."""
        with self._changes:
            if not self._owed:
                self._runs_in = None
                return False
        key, release = self._owed[0]
        self.installation.store.apply(key, release)
        self._owed.popleft()
        return True
