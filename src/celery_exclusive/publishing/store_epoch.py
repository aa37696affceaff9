"""The epoch of a publisher's store, by which a worker notices that the publisher uses another one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LIFE = 60
"""Seconds after which it is read again: a store that has lost its data has a new epoch."""


def store_epoch(services: Services, store: Any) -> str:
    """Return the epoch of the store, read at most a minute ago.

    For a call that is about to ask this store anyway. If this raises, the call has waited for the store once
    and must not ask it again.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    now = time.monotonic()
    epoch, expires = services.publisher_epoch
    if now >= expires:
        notices.store_chosen(services)
        epoch = store.epoch()
        services.publisher_epoch = epoch, now + _LIFE
    return epoch
