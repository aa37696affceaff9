"""The current run: its leases, for its body and for the calls that it publishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from os import getpid
from threading import get_ident

from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import notices
from celery_exclusive.core.admission import Admission
from celery_exclusive.core.claim import FINISHED, Claim, UniqueUntil
from celery_exclusive.core.operations import Owner
from celery_exclusive.errors import FULL, DuplicateTask, LockHeld, Superseded
from celery_exclusive.leases.lease import Lease, superseded
from celery_exclusive.options.declared import Exclusive, Unique, UniqueOption
from celery_exclusive.options.option import Option
from celery_exclusive.signals import LockOutcome, send
from celery_exclusive.system.deadline import Budget


@dataclass(slots=True)
class UniqueLease:
    """The unique lease of a run. `is_handed_over`: its retry or replacement may have inherited it."""

    claim: Claim
    until: UniqueUntil
    may_hold: bool
    is_handed_over: bool = False


@dataclass(slots=True)
class Run:
    """One run of a task with options, from the gate to its end. A worker and `apply()` have their own kinds.

    `skipped`: a one-tuple of the result. `failure`: the error in place of the body. `runs_without_lease`: the
    store is silent, and the option allows that. `outer`: the run whose body called `apply()`. `unique`: the
    lease that the end of the body releases. `end`: the budget of store calls from then to its report.
    `has_retried`: its retry was published. `is_interrupted`: by the worker, for a newer call.
    `pending_outcomes`: receivers get them when the body begins, or at the end of the run.
    """

    task_id: str
    lease: Lease | None = None
    unique_lease: Lease | None = None
    outer: Run | None = None
    skipped: tuple[object] | None = None
    failure: Exception | None = None
    runs_without_lease: bool = False
    unique: UniqueLease | None = None
    body_begun: bool = False
    body_over: bool = False
    end: Budget = field(default_factory=Budget)
    keeps_on_retry: bool = False
    has_retried: bool = False
    is_interrupted: bool = False
    pending_outcomes: tuple[LockOutcome, ...] = ()
    _pid: int = field(default_factory=getpid, repr=False, compare=False)
    _thread: int = field(default_factory=get_ident, repr=False, compare=False)

    @property
    def is_here(self) -> bool:
        """Whether this thread executes the run, and not a fork, or a thread with a copy of its context."""
        return (self._pid, self._thread) == (getpid(), get_ident())

    @property
    def body_lease(self) -> Lease | None:
        """The lease under which its body runs: on its lock, or else on its unique key."""
        return self.lease or self.unique_lease

    def is_superseded_by(self, error: BaseException) -> bool:
        """Whether the body has ended with this error since a newer call has superseded it."""
        is_interruption = self.is_interrupted and isinstance(error, SoftTimeLimitExceeded)
        return (is_interruption or isinstance(error, Superseded)) and self.end_superseded()

    def end_superseded(self) -> bool:
        """Set `skipped` or `failure` of a run that a newer call has superseded. False: none has."""
        return False

    def hand_over_lock(self, id: str, queued_ttl: int) -> bool:
        """Leave the lock to the retry with this claim id, for microseconds; return whether it may hold it."""
        raise NotImplementedError

    def end_body(self, error: BaseException | None) -> None:  # noqa: ARG002 - most kinds ask for it
        """Release the unique key, since the body has ended, with this error if any.

        If the process is gone, the background releaser releases it after errbacks and hooks.
        """
        self.body_over = True

    def note(self, outcome: LockOutcome) -> None:
        self.pending_outcomes += (outcome,)

    def tell(self) -> None:
        """Send the noted outcomes. At the begin of the body the task and its span are the current ones."""
        pending_outcomes, self.pending_outcomes = self.pending_outcomes, ()
        for outcome in pending_outcomes:
            send(outcome)

    def replace_body(
        self, task: str, outcome: Admission, exclusive: Exclusive | None, unique: UniqueOption | None
    ) -> None:
        """Set the replacement of the body: a result for a skip, an error for a failure."""
        if outcome.kind == "skip":
            option: Option | None = unique if outcome.reason == "duplicate" else exclusive
            if option is None:  # of another release of the code: the default result
                option = Unique()
            self.skipped = (option.skipped(outcome.key, outcome.existing_id),)
        elif outcome.reason == "duplicate":
            self.failure = duplicate_error(task, outcome)
        elif outcome.reason == "superseded":
            self.failure = superseded(outcome.key, outcome.existing_id)
        else:
            assert exclusive  # noqa: S101 - no other lock conflicts
            text = _refusal(task, exclusive, outcome)
            self.failure = LockHeld(text, outcome.key, outcome.existing_id, *closed_by(outcome.by))


current_run: ContextVar[Run | None] = ContextVar("celery_exclusive_run", default=None)


class within:  # noqa: N801 - callers read it as a function
    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._mark = current_run.set(self._run)

    def __exit__(self, *_: object) -> None:
        current_run.reset(self._mark)


def runs() -> Iterator[Run]:
    """Yield the current run, and the runs around it."""
    run = current_run.get()
    while run:
        yield run
        run = run.outer


def enclosing_tasks(key: str) -> tuple[str, ...]:
    """Return the tasks whose bodies run around this code and hold this unique key."""
    return tuple(
        run.task_id
        for run in runs()
        if run.unique and not run.body_over and run.unique.until == FINISHED and run.unique.claim.key == key
    )


def leases_of_runs() -> Iterator[Lease]:
    return (run.lease for run in runs() if run.lease)


def duplicate_error(task: str, outcome: Admission) -> DuplicateTask:
    """Return the error of a task that did not run, since another task holds its unique key."""
    key, existing_id = outcome.key, outcome.existing_id
    text = f"task {task} did not run: unique key {key} is held by {existing_id}"
    return DuplicateTask(text, key, existing_id)


def unread_result(task: str, outcome: Admission) -> DuplicateTask:
    """Return the error of a task that waited for another one, whose result cannot be read."""
    key, existing_id = outcome.key, outcome.existing_id
    text = f"task {task} waited for {existing_id}, which held unique key {key}, and has no result to read"
    return DuplicateTask(text, key, existing_id)


def closed_by(by: Sequence[Owner]) -> tuple[str, float | None]:
    """Return `reason` and `retry_after` of the error of a lock that these owners have."""
    return (by[0].phase, by[0].opens_in) if by and by[0].is_closed else ("held", None)


def _refusal(task: str, option: Exclusive, outcome: Admission) -> str:
    """Return the text of the error of a task that fails because its lock is held, or its line is full."""
    if outcome.reason == "given_up":
        gave_up = notices.gave_up_waiting(outcome.key, option.longest_wait, outcome.by, outcome.others)
        return f"task {task} {gave_up}. Call it again later, or use on_give_up='skip'"
    held = notices.held(outcome.by, outcome.others)
    if outcome.reason == "full":
        return (
            f"task {task} cannot wait in the line of lock {outcome.key}: {outcome.waiting} "
            f"waiting already, {FULL}; the lock is {held}. Call it again "
            "later, or use on_full='skip'"
        )
    return (
        f"task {task} found lock {outcome.key} {held}. Call it again later, or use on_conflict='wait' or "
        "'skip'"
    )
