"""Notices publishers that look for locks in another store than this worker.

No worker releases the keys that they acquire there: later calls are dropped, or wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.messages.header import Header

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_MOST = 100
"""The most epochs that are remembered, and reported."""
_LONGEST = 250
"""The most characters of an epoch, a key, and a publisher's name, which other programs write."""


class OtherStores:
    """Compares the epochs in messages with the epoch of this worker's store, and reports each other one once.

    A former epoch stays known: the store may have lost its data since.
    """

    def __init__(self, services: Services, epoch: str) -> None:
        self.services = services
        self._own = {epoch[:_LONGEST]}
        self._seen: dict[str, tuple[str, str, str] | None] = {}
        """The sender, task and key of the first message with an epoch. None: it was compared."""

    def note(self, headers: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Note the epoch in a message, without a store call. Any program may have written `fields`."""
        epoch = fields.get("store")
        if not isinstance(epoch, str) or (epoch := epoch[:_LONGEST]) in self._own or epoch in self._seen:
            return
        if len(self._seen) < _MOST and (header := Header.of(fields)):
            key = (header.unique or [header.exclusive])[0]
            words = headers.get("origin") or "a publisher", headers.get("task"), key
            sender, task, name = (str(word)[:_LONGEST] for word in words)
            self._seen[epoch] = sender, task, name

    def report(self, current: str) -> None:
        """Compare new epochs with the current epoch of the store, and log each different one."""
        self._own.add(current[:_LONGEST])
        for epoch, words in list(self._seen.items()):
            if words and epoch not in self._own:
                notices.elsewhere(*words, self.services.store.url, self.services.settings.exclusive_prefix)
            self._seen[epoch] = None
