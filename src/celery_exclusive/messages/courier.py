"""Republishes the stored messages that a store's answers name, in one thread per process."""

from __future__ import annotations

import atexit
import os
import queue
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, RLock, Thread, current_thread
from typing import TYPE_CHECKING

from celery_exclusive import notices, outcomes
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Applied, Remove
from celery_exclusive.messages.header import Header
from celery_exclusive.messages.namespace import keep_namespace, own_broker
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.outcomes import Subject
from celery_exclusive.stores.base import Reply, Wake
from celery_exclusive.system.deadline import at_most
from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.threads import is_outside_hub, run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_WAIT = 0.3
"""Seconds for which a caller waits until its messages are published."""
_IDLE = 10
"""Seconds after which the thread ends, and its connection is closed."""
_FAREWELL = 10
"""Seconds for which a stopping worker waits for the messages that are not published yet."""


@dataclass(frozen=True, slots=True)
class _Batch:
    wakes: tuple[Wake, ...]
    until: float
    is_over: Event = field(default_factory=Event)


class Courier:
    """Republishes messages for the other threads of this process.

    A broker that does not answer, or blocks publishers, delays a caller by a fraction of a second only: a
    message that is not published before its offer expires is offered again by a worker's reaper.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._guard = RLock()  # a signal handler may release a lock while it is held
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()  # None: end the thread
        self._thread: Thread | None = None

    def follow_up(self, reply: Reply, wait: float = _WAIT) -> None:
        """Republish the messages of a reply and log the tasks that stepped aside; wait for it briefly."""
        for key, id in reply.aside:
            run_in_hub(outcomes.stepped_aside, Subject(None, task_id(id), key))
        if not reply.wake:
            return
        batch = _Batch(reply.wake, time.monotonic() + self.services.settings.exclusive_offer)
        run_in_hub(self._send, batch)
        if not is_outside_hub() and current_thread() is not self._thread:  # it would wait for itself
            batch.is_over.wait(wait)

    def wait(self, seconds: float) -> None:
        """Wait until all messages so far are published, at most for so many seconds."""
        last = _Batch((), 0)
        self._send(last)
        last.is_over.wait(seconds)

    def close(self) -> None:
        """Wait for a while until all messages are published, and end the thread."""
        with self._guard:
            thread = self._thread if self._pid == os.getpid() else None
            if thread:
                self._batches.put(None)
        if thread:
            atexit.unregister(self.close)  # once is enough
            thread.join(at_most(_FAREWELL))

    def _send(self, batch: _Batch) -> None:
        with forks_wait(), self._guard:
            if self._pid != os.getpid():  # a forked child, which has neither the thread nor its connection
                self._start_anew()
            self._batches.put(batch)
            if self._thread:
                return
            atexit.unregister(self.close)
            atexit.register(self.close)  # a script may end as soon as it has released a lock
            self._thread = Thread(target=self._run, name="exclusive-courier", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process is about to end, or may have no more threads
                self._thread = None
                self._batches = queue.SimpleQueue()
                self._publish(Republisher(self.services.app), batch)

    def _run(self) -> None:
        republisher = Republisher(self.services.app, own_connection=True)
        try:
            while batch := self._next():
                with forks_wait():
                    self._publish(republisher, batch)
        finally:
            republisher.close()

    def _next(self) -> _Batch | None:
        """Wait for the next batch. None: the thread has to end, since it was idle or `close` was called."""
        with suppress(queue.Empty):
            if batch := self._batches.get(timeout=_IDLE):
                return batch
        with forks_wait(), self._guard:  # `_send` starts a new thread from now on, or has come meanwhile
            while not self._batches.empty():
                if batch := self._batches.get():  # None is another close()
                    return batch
            self._thread = None
        return None

    def _publish(self, republisher: Republisher, batch: _Batch) -> None:
        try:
            if time.monotonic() < batch.until:
                if not self.services.worker:  # workers keep the namespace all the time
                    keep_namespace(self.services, own_broker(self.services))
                for wake, header in republisher.publish_wakes(self._genuine(batch.wakes)):
                    self._drop(wake, header)
        except Exception as error:  # noqa: BLE001 - the messages of others must not wait for it
            notices.trouble(
                "a waiting task was not republished from this process; a worker will offer it again", error
            )
        finally:
            batch.is_over.set()

    def _genuine(self, wakes: Iterable[Wake]) -> Iterator[Wake]:
        """Yield the wakes whose messages have a valid signature for this key and id; set the others aside."""
        open_parked = self.services.signer.open_parked
        for wake in wakes:
            try:
                message = wake.message and open_parked(wake.message, wake.key, wake.id)
            except Exception as error:  # noqa: BLE001 - a process that has the secret, or can read it, publishes it
                what = f"the stored message of {wake.id} for lock {wake.key} was not republished"
                notices.trouble(what, error)
                continue
            if message:
                yield replace(wake, message=message)
                continue
            if wake.message:  # perhaps of a publisher that has not got this secret yet
                set_aside = self.services.store.apply(wake.key, Remove(wake.id, ending="aside"))
                if set_aside.answer == Applied(True):
                    notices.not_signed(wake.key, wake.id)
                continue
            outcomes.message_gone(Subject(None, task_id(wake.id), wake.key))
            # The broker may have the genuine message, which runs when it is redelivered.
            self.services.store.apply(wake.key, Remove(wake.id, ending="open"))

    def _drop(self, wake: Wake, header: Header) -> None:
        """Remove a task whose queue was deleted from its line."""
        id = task_id(wake.id)
        outcomes.queue_deleted(Subject(None, id, wake.key), header.route[0] if header.route else "")
        self.services.releaser.add_message(id, header)
        self.services.store.apply(wake.key, Remove(wake.id))
