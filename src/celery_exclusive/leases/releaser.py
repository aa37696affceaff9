"""Releases leases in the background, until the store answers: one thread per process."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING

from celery.utils.functional import noop

from celery_exclusive import notices
from celery_exclusive.core.operations import Release, Request
from celery_exclusive.errors import StoreUnavailable, UnreadableKey
from celery_exclusive.messages.header import Header, publish_claim_id
from celery_exclusive.options.declared import PERIOD
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.processes import is_gone

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_FIRST_PAUSE, _LONGEST_PAUSE = 1, 5
"""Seconds between attempts while the store does not answer."""
_WATCH = 0.02
"""Seconds between looks at a child that is about to die."""
_MOST = 100_000
"""How much may be owed; beyond that the oldest is forgotten."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for the store."""


@dataclass(frozen=True, slots=True, eq=False)
class _Owed:
    """What is still to be asked of the store, once the process `dying` is gone."""

    operations: tuple[tuple[str, Request], ...]
    dying: int | None
    before: Callable[[], object]

    @property
    def key(self) -> str:
        """One of the keys: what log lines name."""
        return next((key for key, _ in self.operations), "")

    @property
    def is_ready(self) -> bool:
        return self.dying in (None, os.getpid()) or is_gone(self.dying)


class Releaser:
    """Does what the code that holds a lease could not do itself, since the store or its process was gone.

    Owed are the leases of deliveries whose child was killed, or which ended while the store did not answer;
    and unique leases of calls that got no answer and were not sent, or of messages that end where no code
    of their task runs. Without it a unique key might be taken for a day.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._owed: deque[_Owed] = deque(maxlen=_MOST)
        self._changes = Lock()
        self._forgotten, self._first = 0, ""
        self._runs_in: int | None = None
        self._pid = os.getpid()
        self._thread: Thread | None = None

    def add_message(self, id: str, header: Header) -> None:
        """Release the unique lease of this task's message, unless a delivery of it runs elsewhere."""
        if header.u and header.u[1] != PERIOD:
            claim = publish_claim_id(header.claim_id(id))
            self.add((header.u[0], Release(claim, header.id, done=False)))

    def add(
        self,
        *operations: tuple[str, Request],
        dying: int | None = None,
        before: Callable[[], object] = noop,
    ) -> None:
        """Ask the store for these operations, with their keys, until it has answered all of them.

        Parameters:
            dying: a process that has to be gone first.
            before: is called when they can be asked for, and again with each attempt.
        """
        if self._pid != os.getpid():  # a forked child cannot wait for its parent's children
            self._pid = os.getpid()
            self._owed = deque((owed for owed in self._owed if owed.dying is None), maxlen=_MOST)
        if len(self._owed) == _MOST:
            self._forgotten += 1
            if self._forgotten == 1:  # the others are told when the store answers: they may be many
                self._first = self._owed[0].key
                notices.unreleased(self._first, 1)
        self._owed.append(_Owed(operations, dying, before))
        with forks_wait(), self._changes, suppress(RuntimeError):  # no more threads: it is about to end
            if self._runs_in != os.getpid():
                self._thread = Thread(target=self._run, name="exclusive-releaser", daemon=True)
                self._thread.start()
                self._runs_in = os.getpid()

    def settle(self) -> None:
        """Wait until all is released that can be, for a while."""
        until = time.monotonic() + _FAREWELL
        while self._thread and self._runs_in == os.getpid() and time.monotonic() < until:
            if all(not owed.is_ready for owed in list(self._owed)):
                break
            self._thread.join(_WATCH)
        if left := [owed.key for owed in list(self._owed) if owed.is_ready]:
            notices.unreleased(left[0], len(left))

    def _run(self) -> None:
        trouble = notices.Trouble("the release of leases")
        pause = float(_FIRST_PAUSE)
        while self._is_needed():
            owed = self._next()
            with trouble, forks_wait():
                if owed:
                    self._release(owed)
                    pause = _FIRST_PAUSE
            if trouble.lasts:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            elif owed is None:
                time.sleep(_WATCH)

    def _is_needed(self) -> bool:
        with forks_wait(), self._changes:
            if self._owed:
                return True
            self._runs_in = None
            forgotten, self._forgotten = self._forgotten, 0
        if forgotten > 1:
            notices.unreleased(self._first, forgotten)
        return False

    def _next(self) -> _Owed | None:
        first = self._owed[0]
        return first if first.is_ready else next((owed for owed in list(self._owed) if owed.is_ready), None)

    def _release(self, owed: _Owed) -> None:
        owed.before()
        is_answered = False
        try:
            for key, operation in owed.operations:
                self._ask(key, operation)
            is_answered = True
        finally:
            with suppress(ValueError):  # it was forgotten meanwhile
                self._owed.remove(owed)
                if not is_answered:  # the others come first: one alone may be in trouble
                    self._owed.append(owed)

    def _ask(self, key: str, operation: Request) -> None:
        try:
            self.services.store.apply(key, operation)
        except Exception as error:  # what will never be done must not hold up the others
            if isinstance(error, StoreUnavailable) and not isinstance(error, UnreadableKey):
                raise
            notices.trouble(f"the lease on {key} was not released and expires after its ttl", error)
