"""The context of a worker, for its parts and for the runs of its tasks, in each of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from celery.worker import state

from celery_exclusive.core.claim import NO_WORKER
from celery_exclusive.messages.header import HEADER, read_header
from celery_exclusive.worker.roster import Roster

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.worker.heartbeat import Heartbeat
    from celery_exclusive.worker.relay import Relay


@dataclass(eq=False)
class WorkerContext:
    """The parts of a worker; it is made when the worker starts.

    The main process has the `heartbeat`, Celery's worker as `celery`, the `mark` of its tokens, and the
    requests that have `begun`, by ids: copies of a message share one. Children have the roster, and forked
    ones the relay.
    """

    services: Services
    roster: Roster = field(default_factory=Roster)
    heartbeat: Heartbeat | None = None
    relay: Relay | None = None
    celery: Any = None
    mark: str = NO_WORKER
    begun: dict[str, list[ref[Any]]] = field(default_factory=dict)
    _pid: int = field(init=False, default_factory=os.getpid)

    @property
    def listener(self) -> str | None:
        """The worker's name, while a monitor listens to its events."""
        self._look_for_monitors()
        return self.roster.listener

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, so that other workers get the tasks that it has not begun.

        A solo body keeps the main loop from ending, but not a signal's handler from setting Celery's flag.
        """
        told: object = state.should_stop
        return self.roster.is_stopping or not (told is None or told is False)

    @property
    def runs_in_main(self) -> bool:
        """Whether bodies run in the main process, which sees their ends itself."""
        return self.heartbeat is not None and not self.roster.is_shared

    @property
    def sees_runs(self) -> bool:
        """Whether a heartbeat renews the leases of the runs in this process."""
        return self.roster.is_shared or (self.heartbeat is not None and self._pid == os.getpid())

    @property
    def is_green(self) -> bool:
        return bool(self.celery and self.celery.pool_cls.is_green)

    def note_arrival(self, task: Any, headers: Mapping[str, Any]) -> None:
        if self.heartbeat and isinstance(fields := headers.get(HEADER), dict):
            self.heartbeat.other_stores.note(headers, fields)
            if "values" in fields:
                with suppress(Exception):  # the child that reads them says what is wrong with them
                    if header := read_header(self.services, headers, headers.get("id"), task.name):
                        self.heartbeat.look_more_often_for(task, header.values)
        self._look_for_monitors()

    def _look_for_monitors(self) -> None:
        """Note in the main process whether a monitor has switched the events of tasks on."""
        if self.celery is None or self._pid != os.getpid():
            return
        dispatcher = getattr(self.celery.consumer, "event_dispatcher", None)
        is_on = dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups)
        self.roster.listen(str(self.celery.hostname) if is_on else None)
