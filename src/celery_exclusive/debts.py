"""Unique leases that are to be given back, by one thread per process, for as long as the store is silent."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING

from celery_exclusive import notices
from celery_exclusive.claim import Claim
from celery_exclusive.core.operations import Release
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.forking import forks_wait
from celery_exclusive.header import Header, publish_claim_id
from celery_exclusive.options import PERIOD

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_FIRST_PAUSE, _LONGEST_PAUSE = 1, 5
"""Seconds between attempts."""
_MOST = 100_000
"""Of more than so many the oldest are forgotten."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for the store."""


class Debts:
    """Leases that nobody else gives back; else a key might be taken for a day.

    Of calls that got no answer and were not sent, and of messages that end where no code of their task runs.
    The key of a message that has been delivered to somebody else meanwhile, and runs, is left alone.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._owed: deque[tuple[str, Release]] = deque(maxlen=_MOST)
        self._changes = Lock()
        self._forgotten, self._first = 0, ""
        self._runs_in: int | None = None
        self._thread: Thread | None = None

    def add_message(self, id: str, header: Header) -> None:
        """Give back what the message of this task may have."""
        if header.u and header.u[1] != PERIOD:
            claim = Claim(header.u[0], publish_claim_id(header.claim_id(id)), header.id, 0)
            self.add(claim.key, claim.release(done=False))

    def add(self, key: str, release: Release) -> None:
        """A child that is forked gives back what it has inherited, too, which does no harm."""
        if len(self._owed) == _MOST:
            self._forgotten += 1
            if self._forgotten == 1:  # of the others when the store answers: they may be many
                self._first = self._owed[0][0]
                notices.unpaid(self._first, 1)
        self._owed.append((key, release))
        with forks_wait(), self._changes, suppress(RuntimeError):  # no more threads: it is about to end
            if self._runs_in != os.getpid():
                self._thread = Thread(target=self._run, name="exclusive-debts", daemon=True)
                self._thread.start()
                self._runs_in = os.getpid()

    def settle(self) -> None:
        """Wait until all is given back, for a while."""
        if self._thread and self._runs_in == os.getpid():
            self._thread.join(_FAREWELL)
        if self._owed:
            notices.unpaid(self._owed[0][0], len(self._owed))

    def _run(self) -> None:
        trouble = notices.Trouble(
            "unique keys that were taken, or may have been, are given back when the store answers"
        )
        pause, goes_on = _FIRST_PAUSE, True
        while goes_on:
            with trouble, forks_wait():
                goes_on = self._give_back()
                pause = _FIRST_PAUSE
            if trouble.lasts:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _give_back(self) -> bool:
        """Give back one; False: there is none, and this thread ends."""
        with self._changes:
            if not self._owed:
                self._runs_in = None
                forgotten, self._forgotten = self._forgotten, 0
                if forgotten > 1:
                    notices.unpaid(self._first, forgotten)
                return False
            key, release = self._owed[0]
        try:
            self.installation.store.apply(key, release)
        except StoreUnavailable as error:
            if not isinstance(error, UnreadableKey):
                raise
            notices.trouble(f"unique key {key} cannot be given back", error)
        except Exception as error:  # noqa: BLE001 - the others must not wait for what will never be done
            notices.trouble(f"unique key {key} is free only when its time is over", error)
        with suppress(ValueError):  # forgotten
            self._owed.remove((key, release))
        return True
