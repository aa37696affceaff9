"""What a task author sees: `self.lease` and `task.lock_state()`."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.document import SECOND
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.keys import exclusive_key
from celery_exclusive.notices import task_id

if TYPE_CHECKING:
    from celery_exclusive.install import Installation
    from celery_exclusive.lease import Lease
    from celery_exclusive.options import Exclusive


@dataclass(slots=True)
class Run:
    """One execution of a task with options, from the gate to its end.

    `skipped` is a one-tuple of the result when the body must not be entered, `failure` what to raise instead.
    """

    task_id: str
    lease: Lease | None = None
    skipped: tuple[Any] | None = None
    failure: Exception | None = None
    entered: bool = False
    body_over: bool = False


current_run: ContextVar[Run | None] = ContextVar("celery_exclusive_run", default=None)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who runs now: the task's id, and seconds since it began and until its lease ends if not renewed."""

    task_id: str
    age: float
    remaining: float


@dataclass(frozen=True, slots=True)
class LockState:
    """What is going on at a key: who runs, and how many wait in line."""

    key: str
    holders: tuple[LockHolder, ...]
    waiting: int

    @property
    def is_running(self) -> bool:
        """Whether the task is being executed right now."""
        return bool(self.holders)

    @property
    def is_queued(self) -> bool:
        """Whether somebody waits in line for it."""
        return self.waiting > 0


class TaskMixin:
    """What a task with options has on top of Celery's."""

    if TYPE_CHECKING:
        exclusive: Exclusive | None
        name: str
        run: Any
        request: Any
        app: Any

    @property
    def lease(self) -> Lease:
        """The lease that this run holds.

        Raises:
            ExclusiveError: the task is not being run by a worker with a lease, as in a direct call.
        """
        run = current_run.get()
        if run is None or run.lease is None or run.task_id != self.request.id:
            raise ExclusiveError(
                f"task {self.name} holds no lease: only a worker takes one, for a message of a task with "
                "exclusive=Exclusive(...); a direct call is a plain function call, and a call with "
                "exclusive=None has its lock switched off"
            )
        return run.lease

    def lock_state(self, *args: Any, **kwargs: Any) -> LockState:
        """Tell what is going on at the key that these arguments lock. Looking changes nothing.

        Example:
            if import_feed.lock_state(url).is_running: ...

        Parameters:
            args, kwargs: those of the call.

        Raises:
            OptionError: the task has no exclusive= option, or the arguments cannot be a key.
            StoreUnavailable: the store does not answer.
        """
        installation: Installation = self.app._celery_exclusive
        option = installation.option(self)
        key = exclusive_key(self.name, self.run, option, args, kwargs)
        snapshot = installation.store.inspect(key)
        holders = tuple(
            LockHolder(task_id(rival.id), rival.age / SECOND, rival.remaining / SECOND)
            for rival in snapshot.holders
        )
        return LockState(key, holders, snapshot.waiting + snapshot.aside)
