"""Revoked tasks that wait in a line, where no worker has their messages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.worker import state

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Recall

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LOOKS = 2
"""How often the lines are searched for a revoked task: it may be on its way into one the first time."""
_PAUSE = 5
"""Seconds between these looks."""
_PATIENCE = 15
"""Seconds after which a worker forgets a revoked task, if another worker has done all sweeps since."""


@dataclass
class _Sought:
    until: float
    next_look: float
    looks_left: int = _LOOKS


class Revoked:
    """The tasks that this worker has heard to be revoked and that may wait in a line.

    Their messages are published out of turn, and a worker ends them as it ends any revoked message: as
    REVOKED, with its events, and with its keys free.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._heard: set[str] = set()
        self._sought: dict[str, _Sought] = {}

    def listen(self) -> None:
        """Note what has been revoked since the last call."""
        if not (state.revoked or self._sought):
            return
        now, all_revoked = time.monotonic(), set(state.revoked.as_dict())
        for id in all_revoked - self._heard:
            self._sought[id] = _Sought(now + _PATIENCE, now)
        self._heard = all_revoked
        self._sought = {id: it for id, it in self._sought.items() if it.looks_left and now < it.until}

    def recall(self) -> None:
        """Search the lines for what has been noted, and recall it."""
        now = time.monotonic()
        due = {id: sought for id, sought in self._sought.items() if sought.next_look <= now}
        if not due:
            return
        store = self.services.store
        found = [(key, id) for key, id in store.places() if task_id(id) in due]
        for key, id in found:
            store.apply(key, Recall(id))
        for sought in due.values():
            sought.looks_left -= 1
            sought.next_look = now + _PAUSE
