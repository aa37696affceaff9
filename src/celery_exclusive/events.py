"""Sends the library's Celery events, while the worker sends events of tasks.

They are in a group of their own, `lock-*`, which monitors pass on.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from celery_exclusive.system.forks import forks_wait
from celery_exclusive.system.threads import run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_logger = logging.getLogger("celery_exclusive")


def send(services: Services, kind: str, **fields: object) -> None:
    """Send an event in a thread: a broker that does not answer must delay neither a heartbeat nor a body."""
    sender = services.worker and services.worker.listener
    if sender:
        words = (services, sender, kind, fields)
        publish = Thread(target=_publish, args=words, name="exclusive-event", daemon=True)
        with suppress(RuntimeError):  # the process is about to end, or cannot start more threads
            run_in_hub(publish.start)


def _publish(services: Services, sender: str, kind: str, fields: dict[str, object]) -> None:
    app = services.app
    try:
        with (
            forks_wait(),
            app.connection_for_write() as connection,
            app.events.Dispatcher(connection, sender) as dispatcher,
        ):
            dispatcher.send(kind, **fields)
    except Exception as error:  # noqa: BLE001 - what the event says is in the log as well
        _logger.warning("the event %s could not be sent: %s", kind, error)
