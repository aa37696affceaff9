"""The publisher of an app with locks: its services, and its memory from one call to the next."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices

if TYPE_CHECKING:
    from celery_exclusive.services import Services

PUBLISHER = "_celery_exclusive_publisher"
"""The attribute of an app that has its publisher."""
_LIFE = 60
"""Seconds after which the epoch is read again: a store that has lost its data has a new one."""
_REMEMBERED = 2
"""Seconds for which a silent store is not asked again for messages that are sent in any case."""


class Publisher:
    """The services of an app, and the facts that its calls have learnt of their store.

    `refused_lately`: the names of tasks whose last call was not sent, so that the next one is likely to be
    another duplicate.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.refused_lately: set[str] = set()
        self._epoch, self._epoch_expires = "", 0.0
        self._silent_until = 0.0

    @cached_property
    def is_fast(self) -> bool:
        """Whether messages are pushed with a client that is kept, past kombu's own code.

        Promises depend neither on this nor on `has_one_call`.
        """
        return bool(self.services.broker_place) and {"kept client", "one call"} <= self.services.fast

    @cached_property
    def has_one_call(self) -> bool:
        """Whether a message may be made before its unique key is acquired, see `publishing.one_call`."""
        return self.is_fast and self.services.is_redis

    def epoch(self, store: Any) -> str:
        """Return the epoch of the store, read at most a minute ago.

        By the epoch in a message, a worker notices that the publisher uses another store. Only a call that
        will send a request to this store anyway may read it. If this raises, the call has waited for the
        store once, and must not wait again.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        now = time.monotonic()
        if now >= self._epoch_expires:
            notices.store_chosen(self.services)
            self._epoch = store.epoch()
            self._epoch_expires = now + _LIFE
        return self._epoch

    @property
    def is_store_silent(self) -> bool:
        """Whether the store was silent a moment ago, see `publishing.impatient_store`."""
        return time.monotonic() < self._silent_until

    def note_silence(self) -> None:
        self._silent_until = time.monotonic() + _REMEMBERED
