"""Publishes the messages that a store's answers wake, in one thread per process."""

from __future__ import annotations

import os
import queue
import time
from dataclasses import dataclass, field
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.operations import Request
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.forking import forks_wait
from celery_exclusive.namespace import keep_namespace, own_broker
from celery_exclusive.native import at_home, is_away
from celery_exclusive.parking import Post
from celery_exclusive.stores.base import Reply, Store, Wake

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

_PATIENCE = 0.3
"""Seconds for which a caller waits until its messages are published."""
_IDLE = 10
"""Seconds after which the thread ends, and its connection is closed."""
_FAREWELL = 10
"""Seconds for which a worker that stops waits for what is still to be published."""


class PublishingStore:
    """A store that has whatever its answers wake published, so that nobody who asks it can forget to."""

    def __init__(self, store: Store, courier: Courier) -> None:
        self._store, self._courier = store, courier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, key: str, operation: Request) -> Reply:
        reply = self._store.apply(key, operation)
        self._courier.follow_up(reply)
        return reply

    def reap(self, limit: int = 100, every: int = 0) -> Reply:
        reply = self._store.reap(limit, every)
        self._courier.follow_up(reply)
        return reply


@dataclass(frozen=True, slots=True)
class _Errand:
    wakes: tuple[Wake, ...]
    until: float
    is_over: Event = field(default_factory=Event)


class Courier:
    """Publishes messages for the other threads of this process.

    A broker that does not answer, or blocks those who publish, holds up nobody for more than a fraction of a
    second: what cannot be published before its offer runs out is offered again by a worker's reaper.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self._guard = RLock()  # a signal handler may release a lock while it is held
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._thread: Thread | None = None

    def follow_up(self, reply: Reply) -> None:
        """Publish what a reply wakes, and log who stepped aside; wait for that, but not for long."""
        for key, id in reply.aside:
            at_home(notices.stepped_aside, key, id)
        if not reply.wake:
            return
        errand = _Errand(reply.wake, time.monotonic() + self.installation.settings.exclusive_offer)
        at_home(self._send, errand)
        if not is_away():
            errand.is_over.wait(_PATIENCE)

    def close(self) -> None:
        """Wait until all is published, for a while."""
        with self._guard:
            thread = self._thread if self._pid == os.getpid() else None
            if thread:
                self._errands.put(None)
        if thread:
            thread.join(_FAREWELL)

    def _send(self, errand: _Errand) -> None:
        with forks_wait(), self._guard:
            if self._pid != os.getpid():  # a forked child, which has neither the thread nor its connection
                self._start_anew()
            self._errands.put(errand)
            if self._thread:
                return
            self._thread = Thread(target=self._run, name="exclusive-courier", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process is about to end, or may have no more threads
                self._thread = None
                self._errands.get_nowait()
                self._publish(Post(self.installation.app), errand)

    def _run(self) -> None:
        post = Post(self.installation.app, own_connection=True)
        try:
            while errand := self._next():
                with forks_wait():
                    self._publish(post, errand)
        finally:
            post.close()

    def _next(self) -> _Errand | None:
        try:
            errand = self._errands.get(timeout=_IDLE)
        except queue.Empty:
            errand = None
        if errand is None:
            with self._guard:
                if not self._errands.empty():  # it came just now
                    return self._errands.get()
                self._thread = None
        return errand

    def _publish(self, post: Post, errand: _Errand) -> None:
        try:
            if time.monotonic() < errand.until:
                if not self.installation.endings:  # workers keep the namespace all the time
                    keep_namespace(self.installation, own_broker(self.installation))
                post.publish_wakes(errand.wakes)
        except ExclusiveError as error:
            notices.trouble("a task that waits is woken a little later, and not from here", error)
        finally:
            errand.is_over.set()
