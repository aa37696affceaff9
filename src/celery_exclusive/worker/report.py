"""Logs the outcome of a delivery, and sets the result or error of a run without a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_exclusive import notices
from celery_exclusive.errors import LockHeld
from celery_exclusive.options.declared import Exclusive, Unique
from celery_exclusive.options.keys import given_preview, preview
from celery_exclusive.services import Services
from celery_exclusive.worker import line_warnings

if TYPE_CHECKING:
    from celery_exclusive.core.admission import Outcome
    from celery_exclusive.run import Run
    from celery_exclusive.worker.delivery import Received


class Report:
    """Logs the outcome of an execution, and sets the skip result or the error of a run without a body."""

    def __init__(
        self, services: Services, task: Any, delivery: Received, call: tuple[str, Any, Any, Any]
    ) -> None:
        self.task, self.delivery, self.call, self.id = task, delivery, call, call[0]
        self.exclusive: Exclusive | None = services.exclusive(self.task, self.delivery.values)
        self.unique: Unique | None = services.unique(self.task, self.delivery.values)
        self.has_preview = services.settings.exclusive_preview

    @property
    def lock(self) -> str:
        """The key with a preview of the arguments: for log lines alone. Errors and events have the key."""
        _, args, kwargs, request = self.call
        option = self.exclusive if self.delivery.exclusive else self.unique
        shown = ""
        if option and self.has_preview:
            is_masked = self.delivery.stored.our_header.get("masked")
            shown = given_preview(request) if is_masked else preview(self.task.run, option, args, kwargs)
        return f"{self.delivery.key} ({shown})" if shown else self.delivery.key

    def note(self, outcome: Outcome, run: Run) -> None:
        name, id = self.task.name, self.id
        is_lock = self.delivery.exclusive is not None and outcome.key == self.delivery.exclusive.key
        lock = self.lock if is_lock and outcome.kind not in ("run", "fail") else outcome.key
        if outcome.kind == "wait":
            notices.parked(name, id, lock, outcome.position, outcome.by)
            if is_lock:
                line_warnings.look(name, outcome.key, outcome.position)
        elif outcome.kind == "drop":
            notices.stale(name, id, lock)
        elif outcome.kind == "fail":
            run.failure = LockHeld(self._refusal(outcome), outcome.key, outcome.owner)
        elif outcome.kind == "skip":
            option = (self.unique or Unique()) if outcome.reason == "duplicate" else self.exclusive
            assert option  # noqa: S101 - a delivery without it competes for no lock
            run.skipped = (option.skipped(outcome.key, outcome.owner),)
            if outcome.reason == "duplicate":
                notices.duplicate(name, id, outcome.key, outcome.owner)
            elif outcome.reason == "full":
                notices.full(name, id, lock, outcome.waiting, outcome.by)
            else:
                notices.skipped(name, id, lock, outcome.by)

    def _refusal(self, outcome: Outcome) -> str:
        held, option = notices.held(outcome.by), self.exclusive
        assert option  # noqa: S101 - a delivery without it competes for no lock
        if outcome.reason == "full":
            return (
                f"task {self.task.name} cannot wait in the line of lock {outcome.key}: {outcome.waiting} "
                f"waiting already, as many as max_waiting allows; the lock is {held}. Publish it again "
                "later, or use on_full='skip'"
            )
        found = f"task {self.task.name} found lock {outcome.key} {held}"
        if option.on_conflict == "raise":
            return f"{found}. Publish it again later, or use on_conflict='wait' or 'skip'"
        late = f"and gave up after {option.give_up_after:g} s (give_up_after)"
        return f"{found}, {late}. Publish it again later"
