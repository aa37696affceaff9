"""Notices publishers that look for locks in another store than this worker keeps them in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.worker.received import Received

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_HOUR = 3600
_NAMED = 3
"""Publishers that are named in an hour; the others are counted."""
_MOST = 1000
"""Epochs that are remembered."""
_LONGEST = 250
"""Characters that are kept of an epoch, a key, and a publisher's name: others write them."""


class OtherStores:
    """Compares the epochs in messages with that of this worker's store, and warns once of each other one.

    A former epoch of its own store stays known: the store may have lost its data since, and have a new one.
    """

    def __init__(self, services: Services, epoch: str) -> None:
        self.services = services
        self._own = {epoch}
        self._known: dict[str, None] = {}
        self._new: dict[str, tuple[str, str]] = {}
        self._hour, self._named, self._more = time.monotonic(), 0, 0

    def is_own(self, fields: Mapping[str, Any]) -> bool:
        """Whether the fields of a header name this store, or none."""
        epoch = fields.get("store")
        return not isinstance(epoch, str) or epoch in self._own

    def note(self, delivery: Received) -> None:
        """Look at the epoch in a message, without asking the store."""
        epoch = (delivery.header.store or "")[:_LONGEST]
        if epoch and epoch not in self._own and epoch not in self._known and len(self._new) < _MOST:
            sender = str(delivery.headers.get("origin") or "a publisher")[:_LONGEST]
            self._new[epoch] = (sender, delivery.key[:_LONGEST])

    def warn(self, current: str) -> None:
        """Compare the new ones with the current epoch of the store, and warn if they differ."""
        self._own.add(current)
        if time.monotonic() >= self._hour + _HOUR:
            if self._more:
                notices.more_elsewhere(self._more)
            self._hour, self._named, self._more = time.monotonic(), 0, 0
        while self._new:
            epoch, (sender, key) = self._new.popitem()
            if epoch not in self._own and epoch not in self._known:
                self._name(sender, key)
                self._known[epoch] = None
        for epoch in list(self._known)[:-_MOST]:
            del self._known[epoch]

    def _name(self, sender: str, key: str) -> None:
        if self._named == _NAMED:
            self._more += 1
            return
        self._named += 1
        settings, store = self.services.settings, self.services.store
        notices.elsewhere(sender, key, store.url, settings.exclusive_prefix)
