"""The signal of this library, for code of the project: the outcome of each task at its lock.

    from celery_exclusive.signals import lock_outcome

    @lock_outcome.connect
    def count(outcome, **_):
        statsd.increment(f"locks.{outcome.kind}", tags=[f"task:{outcome.task_name}"])

It is a signal like Celery's own (`celery.signals`). The sender is the name of the task, so
`connect(sender="feeds.sync")` chooses one task; a `lock()` has no sender. A receiver is called in the
process, thread or greenlet in which the outcome is known, and within the run of the task if that runs there,
after `task_prerun`. Celery logs the error of a receiver, and the task goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from celery.utils.dispatch import Signal

from celery_exclusive.reasons import Reason

__all__ = ["KINDS", "Kind", "LockOutcome", "lock_outcome"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar, overload

    Receiver = TypeVar("Receiver", bound=Callable[..., Any])

    class OutcomeSignal(Protocol):
        """A signal whose receivers keep their types, also for checkers without the stubs of Celery."""

        receivers: list[tuple[Any, Any]]

        @overload
        def connect(
            self,
            receiver: Receiver,
            sender: str | None = ...,
            *,
            weak: bool = ...,
            dispatch_uid: str = ...,
            retry: bool = ...,
        ) -> Receiver: ...
        @overload
        def connect(
            self, *, sender: str | None = ..., weak: bool = ..., dispatch_uid: str = ..., retry: bool = ...
        ) -> Callable[[Receiver], Receiver]: ...
        def disconnect(
            self,
            receiver: Callable[..., Any] | None = ...,
            sender: str | None = ...,
            *,
            dispatch_uid: str | None = ...,
        ) -> bool | None: ...
        def send(self, sender: str | None, *, outcome: LockOutcome) -> list[tuple[Any, Any]]: ...


Kind = Literal[
    "acquired",
    "released",
    "waited",
    "skipped",
    "refused",
    "duplicate",
    "full",
    "given_up",
    "replaced",
    "superseded",
    "lost",
    "recovered",
    "unprotected",
    "forced",
]
KINDS: Final[dict[Kind, str]] = {
    "acquired": "a body begins under a lease: of a task, or of a `lock()`",
    "released": "the body has ended, and its lease was released",
    "waited": "the key was held: the task waits in line, or is rescheduled; a `lock()` waits",
    "skipped": 'the key was held: the task ends with its skip result (`on_conflict="skip"`)',
    "refused": 'the key was held: the task fails with `LockHeld` (`on_conflict="raise"`); a `lock()` was not '
    "acquired within `wait`",
    "duplicate": "another task holds the unique key: a call was not published, or a message ends as skipped",
    "full": "the line was full (`max_waiting`): the task is skipped or fails (`on_full`)",
    "given_up": "the task has waited for `give_up_after`, or too many workers died while they ran it "
    "(`exclusive_max_deaths`)",
    "replaced": "a newer task has taken the place of the task in the line",
    "superseded": "a newer task has superseded the task, whose body has stopped, or whose retry does not run "
    '(`on_conflict="supersede"`)',
    "lost": "the lease ended before the body: another owner may have held the key at the same time",
    "recovered": "the task runs again, since the lease of its dead run has expired",
    "unprotected": "the store did not answer: the body runs, or the call is published, without a lease "
    '(`on_store_error="allow"`)',
    "forced": "an operator has released a held key by force",
}
"""Each kind of outcome with its sentence."""


@dataclass(frozen=True, slots=True)
class LockOutcome:
    """The outcome of a task, or of a `lock()`, at its key. A field that is not known is None.

    Attributes:
        kind: one of `KINDS`.
        task_name: the name of the task. None: a `lock()`.
        task_id: the id of the task; of a `lock()` "lock:host:pid". None: a call that was not published.
        lock_key: the key, as `locks ls` lists it.
        reason: one of `celery_exclusive.reasons.REASONS`.
        holder_id: the task id of the first owner of the key, or "lock:host:pid"; with "replaced" and
            "superseded" the newer task.
        place: the place in the line, from 1.
        held_s: the seconds for which `holder_id` has held the key.
        wait_s: the seconds since the task first found the key held. The time in a line is not known.
    """

    kind: Kind
    task_name: str | None
    task_id: str | None
    lock_key: str
    reason: Reason | None = None
    holder_id: str | None = None
    place: int | None = None
    held_s: float | None = None
    wait_s: float | None = None


lock_outcome: Final[OutcomeSignal] = Signal(name="lock_outcome", providing_args=["outcome"])
"""Sent for each outcome of a task, or of a `lock()`, at its key, with a `LockOutcome` as `outcome`."""


def send(outcome: LockOutcome) -> None:
    """Send an outcome to all receivers."""
    lock_outcome.send(outcome.task_name, outcome=outcome)
