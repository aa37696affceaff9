"""What the processes of a worker have besides an app's services."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils.functional import noop
from celery.worker import state

from celery_exclusive.core.endings import run_ended
from celery_exclusive.services import Services

if TYPE_CHECKING:
    from celery_exclusive.worker.heartbeat import Heartbeat
    from celery_exclusive.worker.received import Received
    from celery_exclusive.worker.relay import Relay
    from celery_exclusive.worker.roster import Roster


@dataclass
class WorkerParts:
    """The parts of a worker that a body's process can reach; `celery` is Celery's own worker object.

    `before` are those of a worker of this app that had not ended when this one began, as in a test.
    `is_closing`: its main loop has ended.
    """

    heartbeat: Heartbeat | None = None
    roster: Roster | None = None
    celery: Any = None
    relay: Relay | None = None
    before: WorkerParts | None = None
    is_closing: bool = False
    has_ended: bool = False

    @property
    def earlier(self) -> WorkerParts | None:
        """Those of an earlier worker that has not ended yet: tasks in its pool may begin."""
        before = self.before
        while before and (before.has_ended or before.heartbeat is None):
            before = before.before
        return before

    @property
    def keeper(self) -> Roster | Heartbeat | None:
        """Where a body of this process registers the leases that it holds."""
        return self.roster or self.heartbeat

    def close(self) -> None:
        """Let all bodies of this worker see that it stops."""
        self.is_closing = True
        if self.roster:
            self.roster.note_stopping()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops: what it has not begun is for others.

        A child learns it from the roster. A solo body keeps the main loop from ending, but not the handler of
        a signal from setting Celery's flag, which is an exit code.
        """
        if self.roster:
            return self.roster.is_stopping
        told: object = state.should_stop
        return self.is_closing or not (told is None or told is False)

    @property
    def runs_in_main(self) -> bool:
        """Whether bodies run in the main process, which sees their ends itself."""
        return self.heartbeat is not None and self.roster is None


def parts_of(services: Services) -> WorkerParts:
    if services.worker is None:
        services.worker = WorkerParts()
    parts: WorkerParts = services.worker
    return parts


def release_later(
    services: Services,
    parts: WorkerParts,
    delivery: Received,
    *,
    done: bool,
    will_be_redelivered: bool,
    dying: int | None = None,
) -> None:
    """Let the background releaser end a delivery that could not do so itself, once `dying` is gone."""
    heartbeat = parts.heartbeat
    services.releaser.add(
        *run_ended(delivery.at_present(), done=done, will_be_redelivered=will_be_redelivered),
        dying=dying,
        before=partial(heartbeat.untrack, delivery.token) if heartbeat else noop,
    )
