"""What a task author sees: `self.lease` and `task.lock_state()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_exclusive.core.document import SECOND
from celery_exclusive.errors import ExclusiveError, OptionError
from celery_exclusive.keys import key_of
from celery_exclusive.notices import task_id
from celery_exclusive.release import release

if TYPE_CHECKING:
    from celery_exclusive.core.operations import Rival
    from celery_exclusive.install import Installation
    from celery_exclusive.lease import Lease
    from celery_exclusive.options import Exclusive

_NOT_SAID = object()


@dataclass(slots=True)
class Run:
    """One execution of a task with options, from the gate to its end.

    `skipped` is a one-tuple of the result when the body must not be entered, `failure` what to raise instead,
    `is_unguarded` says that there is no lease since the store did not answer, `outer` is the run whose body
    called `apply()`.
    """

    task_id: str
    lease: Lease | None = None
    outer: Run | None = None
    skipped: tuple[object] | None = None
    failure: Exception | None = None
    is_unguarded: bool = False
    entered: bool = False
    body_over: bool = False


current_run: ContextVar[Run | None] = ContextVar("celery_exclusive_run", default=None)


def leases_of_runs() -> Iterator[Lease]:
    """Those of the run whose body we are in, and of the runs around it."""
    run = current_run.get()
    while run:
        if run.lease:
            yield run.lease
        run = run.outer


def switches_off(name: str, options: dict[str, Any]) -> bool:
    """Whether a call says `exclusive=None`, which is taken out of its options.

    Raises OptionError for any other value.
    """
    asked = options.pop("exclusive", _NOT_SAID)
    if asked is not _NOT_SAID and asked is not None:
        raise OptionError(
            f"task {name}: exclusive={asked!r} is not an option of a call; options belong to the task, "
            "and a call can only switch them off with exclusive=None"
        )
    return asked is None


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
            ExclusiveError: this run has no lease, as a direct call has none.
        """
        run = current_run.get()
        if run and run.is_unguarded and run.task_id == self.request.id:
            raise ExclusiveError(
                f"task {self.name} runs without a lease: its lock's store did not answer, and its "
                "on_store_error is 'allow'. What needs a lease, or its fence, must not be done then"
            )
        if run is None or run.lease is None or run.task_id != self.request.id:
            raise ExclusiveError(
                f"task {self.name} holds no lease: only a worker takes one, and apply(), for a task with "
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
            TypeError: they do not fit.
            StoreUnavailable: the store does not answer.
        """
        installation: Installation = self.app._celery_exclusive
        key = _key(self, "lock_state", args, kwargs)
        snapshot = installation.store.inspect(key)
        return LockState(key, _holders(snapshot.holders), snapshot.waiting + snapshot.aside)

    def release_lock(self, *args: Any, force: bool = False, **kwargs: Any) -> tuple[LockHolder, ...]:
        """Give back the lock that these arguments lock, and let its line go on.

        It is what `celery -A proj locks release KEY` does.

        Example:
            import_feed.release_lock(url)                  # when nobody holds it, but a line is stuck
            import_feed.release_lock(url, force=True)      # when its holder is known to be dead

        Parameters:
            args, kwargs: those of the call; a parameter of the task that is called `force` only by its place.
            force: take it even from holders whose leases live. A body that still runs goes on, and may run
                beside the next one; its `lease.check()` raises LeaseLost, and its end logs that it is lost.

        Returns:
            From whom it was taken: nobody, unless by force.

        Raises:
            LockHeld: somebody holds it, and there is no `force`; nothing was changed.
            OptionError: the task has no exclusive= option, or the arguments cannot be a key.
            TypeError: they do not fit.
            StoreUnavailable: the store does not answer; trying again is safe.
        """
        key = _key(self, "release_lock", args, kwargs)
        return _holders(release(self.app._celery_exclusive, key, force=force).broken)


def _key(task: Any, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    option = task.app._celery_exclusive.option(task)
    try:
        return key_of(task.name, task.run, option, args, kwargs)
    except TypeError as error:
        raise TypeError(f"task {task.name}: {verb}() takes the arguments of a call: {error}") from error


def _holders(rivals: Iterable[Rival]) -> tuple[LockHolder, ...]:
    return tuple(
        LockHolder(task_id(rival.id), rival.age / SECOND, rival.remaining / SECOND) for rival in rivals
    )
