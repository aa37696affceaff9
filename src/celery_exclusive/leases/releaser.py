"""Releases leases in the background, until the store answers: one thread per process."""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock, Thread
from typing import TYPE_CHECKING

from celery.signals import worker_process_shutdown

from celery_exclusive import notices
from celery_exclusive.core.claim import PERIOD, WINDOW, publish_claim_id
from celery_exclusive.core.endings import retry_ended, run_ended
from celery_exclusive.core.operations import KeyOperation, Release
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.repeated_job import RepeatedJob
from celery_exclusive.messages.header import Header
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.processes import is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_exclusive.core.delivery import Claims
    from celery_exclusive.services import Services

_PAUSE = 1
"""Seconds between attempts while the store does not answer. A release must come before the reaper's sweep."""
_WATCH = 0.02
"""Seconds between two checks of a child that is about to die."""
_MOST = 100_000
"""The most pending releases; beyond that the oldest is dropped."""
_FAREWELL = 8
"""Seconds for which a process that ends waits for the store."""


def unique_releases(id: str, header: Header, *, done: bool) -> Iterator[tuple[str, KeyOperation]]:
    """Yield what releases the unique key of a message that does not begin. `done`: nor a copy of it."""
    if header.unique and header.unique[1] not in (PERIOD, WINDOW):
        claim = header.claim_id(id)
        claims = [claim, publish_claim_id(claim)] if done else [publish_claim_id(claim)]
        for each in dict.fromkeys(claims):
            yield header.unique[0], Release(each, header.id, "done" if done else "open")


def retry_releases(id: str, header: Header, *, done: bool) -> Iterator[tuple[str, KeyOperation]]:
    """Yield what releases the lock that a run has left to this message, its retry, if it does not begin."""
    if header.keeps_lock and header.exclusive:
        for operation in retry_ended(publish_claim_id(header.claim_id(id)), done=done):
            yield header.exclusive, operation


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """Operations that the store has not answered yet; they wait until the process `dying` is gone."""

    operations: tuple[tuple[str, KeyOperation], ...]
    dying: int | None

    @property
    def key(self) -> str:
        return next((key for key, _ in self.operations), "")

    @property
    def is_ready(self) -> bool:
        """Whether its process is gone. A body in this very process has ended before its release was added."""
        return self.dying in (None, os.getpid()) or is_gone(self.dying)


class Releaser:
    """Releases leases whose holder could not, since the store did not answer or the process was gone.

    Also of calls that were not published, and of messages that end without code of their task: a unique key
    might stay held for a day.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._pending: deque[_Pending] = deque(maxlen=_MOST)
        self._changes = RLock()
        self._dropped, self._first = 0, ""
        self._runs = False
        self._pid = os.getpid()
        self._thread: Thread | None = None

    def add_message(self, id: str, header: Header) -> None:
        """Release the leases of this task's message, unless a delivery of it runs elsewhere."""
        self.add_retry(id, header)
        self.add(*unique_releases(id, header, done=False))

    def add_retry(self, id: str, header: Header, *, done: bool = False) -> None:
        """Release the lock that a run has left to this retry, if it has not begun.

        `done`: the retry has ended. If its run has not ended, the run releases the lock then.
        """
        self.add(*retry_releases(id, header, done=done))

    def add_run(
        self, claims: Claims, *, done: bool = False, redelivered: bool, dying: int | None = None
    ) -> None:
        """Release the leases of a run that has ended. A message that is redelivered keeps its unique key."""
        self.add(*run_ended(claims, done=done, will_be_redelivered=redelivered), dying=dying)

    def add(self, *operations: tuple[str, KeyOperation], dying: int | None = None) -> None:
        """Send these operations, once the process `dying` is gone, until the store has answered all."""
        if not operations:
            return
        with forks_wait(), self._changes:
            if self._pid != os.getpid():  # a forked child cannot wait for its parent's children
                self._pid, self._runs = os.getpid(), False
                inherited = [pending for pending in self._pending if pending.dying is None]
                self._pending = deque(inherited, maxlen=_MOST)
            if len(self._pending) == _MOST:
                self._dropped += 1
                if self._dropped == 1:  # the others are logged when the store answers: they may be many
                    self._first = self._pending[0].key
                    notices.releases_dropped(self._first, 1)
            self._pending.append(_Pending(operations, dying))
            if not self._runs:
                worker_process_shutdown.connect(self.drain)  # a child may be replaced, and end for good
                atexit.register(self.drain)  # a script may end as soon as its call has failed
                self._thread = Thread(target=self._run, name="exclusive-releaser", daemon=True)
                with suppress(RuntimeError):  # no more threads: the process ends
                    self._thread.start()
                    self._runs = True

    def drain(self, **_: object) -> None:
        """Wait for a while until this process has released all that it can release."""
        if self._pid != os.getpid():  # a forked child, which has added nothing: its parent does it
            return
        until = time.monotonic() + at_most(_FAREWELL)
        while self._thread and self._runs and time.monotonic() < until:
            if all(not pending.is_ready for pending in list(self._pending)):
                break
            self._thread.join(_WATCH)
        atexit.unregister(self.drain)  # once is enough
        if left := [pending.key for pending in list(self._pending) if pending.is_ready]:
            notices.releases_dropped(left[0], len(left))

    def _run(self) -> None:
        trouble = RepeatedJob("the release of leases")
        while self._goes_on():
            with forks_wait(), self._changes:
                pending = next((pending for pending in self._pending if pending.is_ready), None)
            with trouble, forks_wait():
                if pending:
                    self._release(pending)
            if trouble.lasts:
                time.sleep(_PAUSE)
            elif pending is None:
                time.sleep(_WATCH)

    def _goes_on(self) -> bool:
        """Whether a release is pending. If not, note that the thread ends, so that `add` starts a new one."""
        with forks_wait(), self._changes:
            if self._pending:
                return True
            self._runs = False
            atexit.unregister(self.drain)
            dropped, self._dropped = self._dropped, 0
        if dropped > 1:
            notices.releases_dropped(self._first, dropped)
        return False

    def _release(self, pending: _Pending) -> None:
        is_answered = False
        try:
            for key, operation in pending.operations:
                try:
                    self.services.store.apply(key, operation)
                except StoreUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001 - if it always fails, it must not delay the others
                    notices.trouble(f"the lease on {key} was not released and expires after its ttl", error)
            is_answered = True
        finally:
            with suppress(ValueError):  # it was dropped meanwhile
                self._pending.remove(pending)
                if not is_answered:  # the others go first: only this one may fail
                    self._pending.append(pending)
