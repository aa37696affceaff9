"""Notices publishers that look for locks in another store than this worker.

No worker releases the keys that they acquire there, so later calls are dropped, or wait in a line that stands
still.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.core.claim import WINDOW
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.header import Header

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_HOUR = 3600
_NAMED = 3
"""The most publishers that are named in an hour; further ones are counted."""
_MOST = 1000
"""The most epochs that are remembered."""
_LONGEST = 250
"""The most characters of an epoch, a key, and a publisher's name, which other programs write."""


class OtherStores:
    """Compares the epochs in messages with the epoch of this worker's store, and reports each other one once.

    A former epoch of its own store stays known: the store may have lost its data since, and have a new one.
    """

    def __init__(self, services: Services, epoch: str) -> None:
        self.services = services
        self._own = {epoch[:_LONGEST]}
        self._known: dict[str, None] = {}
        self._new: dict[str, tuple[str, str, str]] = {}
        self._hour, self._named = time.monotonic(), 0

    def note(self, task: Any, headers: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        """Note the epoch in a message, without a store call. Any program may have written `fields`."""
        epoch = fields.get("store")
        if not isinstance(epoch, str) or (epoch := epoch[:_LONGEST]) in self._own or epoch in self._known:
            return
        if len(self._new) < _MOST and (header := Header.of(fields)):
            sender = str(headers.get("origin") or "a publisher")[:_LONGEST]
            self._new[epoch] = sender, str(headers.get("task"))[:_LONGEST], self._effect(task, header)

    def report(self, current: str) -> None:
        """Compare new epochs with the current epoch of the store, and log each different one."""
        self._own.add(current[:_LONGEST])
        if time.monotonic() >= self._hour + _HOUR:
            if self._named > _NAMED:
                notices.more_elsewhere(self._named - _NAMED)
            self._hour, self._named = time.monotonic(), 0
        while self._new:
            epoch, words = self._new.popitem()
            if epoch in self._own or epoch in self._known:
                continue
            self._known[epoch] = None
            self._named += 1
            if self._named <= _NAMED:
                notices.elsewhere(*words, self.services.store.url, self.services.settings.exclusive_prefix)
        for epoch in list(self._known)[:-_MOST]:
            del self._known[epoch]

    def _effect(self, task: Any, header: Header) -> str:
        """Return the effect on later calls, in words."""
        if header.unique is None:
            lock = (header.exclusive or "")[:_LONGEST]
            moves = f"no worker here moves the line of lock {lock} there"
            return f"{moves}, and a call that waits in it does not run"
        if header.unique[1] == WINDOW:
            window = header.unique[0][:_LONGEST]
            return f"no worker here publishes the call that waits in window {window} there"
        key, ttl = header.unique[0][:_LONGEST], self.services.queued_ttl(self.services.unique(task)) / SECOND
        return (
            f"no worker here releases unique key {key} there: calls with it are dropped until its queued_ttl "
            f"of {ttl:g} s is over"
        )
