"""Puts into a line what was published, without a worker."""

from __future__ import annotations

from collections.abc import Callable

from celery_exclusive.core.operations import Acquire, Parked
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage, content_of
from celery_exclusive.stores.base import Store
from tests.worker.lab import Lab


def park_published(lab: Lab, around: Callable[[Store, str, Callable[[], None]], None] | None = None) -> None:
    """Take all messages out of the queue and park them, as a worker would under a limit of 1.

    `around` is told the store and the key of each, and does the parking when it is time.
    """
    store: Store = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    with lab.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("lab")
        for _ in range(int(lab.doors.llen("lab"))):
            message = queue.get(block=False)
            header = Header.of(message.headers[HEADER])
            assert header
            key, id = str(header.exclusive), header.claim_id(message.headers["id"])
            ask = Acquire(id, "t", 600 * SECOND, message=StoredMessage.of(content_of(message), header).dump())

            def park(key: str = key, ask: Acquire = ask) -> None:
                assert isinstance(store.apply(key, ask).answer, Parked)

            if around:
                around(store, key, park)
            else:
                park()
            message.ack()
        queue.close()
