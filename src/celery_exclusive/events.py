"""Sends the library's Celery events, in a group of their own, `lock-*`, while the worker sends events."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING
from weakref import WeakSet

from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.threads import run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_logger = logging.getLogger("celery_exclusive")
_threads: WeakSet[Thread] = WeakSet()


def send(services: Services, kind: str, **fields: object) -> None:
    """Send an event in a thread: a broker that does not answer must delay neither a heartbeat nor a body."""
    if sender := services.worker and services.worker.listener:
        send_all(services, sender, kind, [fields])


def send_all(services: Services, sender: str, kind: str, events: Sequence[dict[str, object]]) -> None:
    """Send events of one kind over one connection, in a thread, also from a process that is no worker."""
    publish = Thread(
        target=_publish, args=(services, sender, kind, events), name="exclusive-event", daemon=True
    )
    with suppress(RuntimeError):  # the process is about to end, or cannot start more threads
        run_in_hub(publish.start)
        _threads.add(publish)


def wait(seconds: float) -> None:
    """Wait until all events are sent, at most so long: for a process that is about to end."""
    until = time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(max(until - time.monotonic(), 0))


def _publish(services: Services, sender: str, kind: str, events: Sequence[dict[str, object]]) -> None:
    app = services.app
    try:
        with (
            forks_wait(),
            app.connection_for_write() as connection,
            app.events.Dispatcher(connection, sender) as dispatcher,
        ):
            for fields in events:
                dispatcher.send(kind, **fields)
    except Exception as error:  # noqa: BLE001 - what the event says is in the log as well
        _logger.warning("the event %s could not be sent: %s", kind, error)
