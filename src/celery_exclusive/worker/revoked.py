"""Revoked tasks that wait in a line, where no worker has their messages."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Recall
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.leases.repeated_job import RepeatedJob

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LOOKS = 2
"""The number of searches for a revoked task, which may be on its way into a line at the first one."""
_PAUSE = 5
"""Seconds between two searches."""
_PATIENCE = 8
"""Seconds after which a worker forgets a revoked task, if another worker has done all sweeps since."""
_AT_ONCE = 100
"""The most messages that are recalled after a sweep: the next one must not wait for them."""


@dataclass
class _Sought:
    until: float
    next_look: float
    looks_left: int = _LOOKS


class Revoked:
    """The revoked tasks that this worker has heard of, and that may wait in a line.

    Their messages are published out of turn, and a worker ends them as it ends any revoked message: as
    REVOKED, with its events, and with its keys free.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self._heard: set[str] = set()
        self._sought: dict[str, _Sought] = {}
        self._compared = 0.0
        self._trouble = RepeatedJob("the search for revoked tasks in lines")

    def listen(self) -> None:
        """Note the tasks that were revoked since the last call.

        Celery remembers up to 50,000 revoked tasks, and then forgets one for each new one. So their number
        may stay the same, and from time to time all of them are compared.
        """
        now, is_longer = time.monotonic(), len(state.revoked) != len(self._heard)
        if is_longer or (self._heard and now - self._compared >= _PAUSE):
            self._compared, all_revoked = now, set(state.revoked)
            for id in all_revoked - self._heard:
                self._sought[id] = _Sought(now + _PATIENCE, now)
            self._heard = all_revoked
        self._sought = {id: it for id, it in self._sought.items() if it.looks_left and now < it.until}

    def recall(self) -> None:
        """Search the lines for the noted tasks, and recall their messages. Raises nothing: sweeps go on."""
        with self._trouble:
            now = time.monotonic()
            due = {id: sought for id, sought in self._sought.items() if sought.next_look <= now}
            if not due:
                return
            for sought in due.values():
                sought.looks_left -= 1
                sought.next_look = now + _PAUSE
            store: Any = self.services.store
            found = [(key, id) for key, id in store.places() if task_id(id) in due]
            for key, id in found[:_AT_ONCE]:
                with suppress(UnreadableKey):  # others are not damaged
                    reply = store.apply(key, Recall(id), follows_up=False)
                    self.services.courier.follow_up(reply, wait=0)  # there may be many
            for _, id in found[_AT_ONCE:]:
                self._sought[task_id(id)] = _Sought(now + _PATIENCE, now)
