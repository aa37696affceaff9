"""Runs without a message: `task.apply()`, and every call under `task_always_eager`."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from celery.app.task import Task as CeleryTask
from celery.exceptions import Retry
from celery.utils import uuid

from celery_exclusive import notices, outcomes
from celery_exclusive.core.admission import Admission, admit_directly
from celery_exclusive.core.claim import FINISHED, WINDOW, Claim, UniqueClaim
from celery_exclusive.core.operations import Acquire, AcquireAlone, Answer, Applied, Granted, Hold
from celery_exclusive.core.plan import Ask, run_plan
from celery_exclusive.core.records import NEVER, SECOND
from celery_exclusive.core.room import ONE_UNIT
from celery_exclusive.errors import LockHeld, StoreUnavailable
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local.acquisition import Acquisition, new_claim
from celery_exclusive.options.amounts import MOST
from celery_exclusive.options.keys import key_of, share_of
from celery_exclusive.options.option import Option
from celery_exclusive.outcomes import Subject
from celery_exclusive.publishing.call_options import CallOptions, pop_call_options
from celery_exclusive.run import (
    Run,
    UniqueLease,
    closed_by,
    current_run,
    duplicate_error,
    leases_of_runs,
    runs,
    within,
)
from celery_exclusive.services import Services
from celery_exclusive.stores.base import open_store


class EagerTask(CeleryTask):  # type: ignore[type-arg]
    """Runs a task with options without a message; after the user's class, whose `apply` may add arguments."""

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Run the task here and now, as Celery's own does, under the real lock of its key.

        While another owner holds the key, a task with `on_conflict="wait"`, "latest" or "reschedule" blocks
        until the key is free, a task with "skip" returns the skip result, and a task with "raise" fails with
        `LockHeld`. A task that has blocked for `give_up_after` fails or is skipped, as `on_give_up` says. No
        newer call replaces a call that blocks. A call inside a run that holds the key runs under the lease of
        that run. With `on_store_error="allow"` the task runs without a lease as soon as the store
        does not answer. A task with `unique=` whose key is held, by a queued or running task, is skipped, or
        raises. Under `task_always_eager` no request is sent to the store, and nothing conflicts.

        Parameters:
            args, kwargs, ...: as for Celery's `apply`; `exclusive=` and `unique=` are for this call, None
                switches them off.

        Raises:
            DuplicateTask: its unique key is held, and its option says "raise".
            StoreUnavailable: the store does not answer, and `on_store_error` is not "allow".
            OptionError: the arguments cannot be a key.
            ExclusiveError: it would wait for a `lock()` that this very code holds.
        """
        id = task_id or uuid()
        call_options = pop_call_options(self.name, self, options)
        call = args or (), kwargs or {}, options.get("headers")
        run = _EagerRun(self, id, call, call_options)
        with run.admitted(), within(run):
            result: Any = super().apply(args, kwargs, link, link_error, id, *rest, **options)
        result.key, result.existing_id = run.unique_key, run.duplicate_of
        result.outcome = "published" if result.existing_id is None else "skipped"
        return result


class _EagerRun(Run):
    """One run of a task without a message: it runs the plan on the store, and carries out its outcome."""

    unique_key: str | None = None
    duplicate_of: str | None = None

    def __init__(self, task: Any, id: str, call: tuple[Any, Any, Any], options: CallOptions) -> None:
        super().__init__(id, outer=current_run.get())
        self.task, self.call = task, call
        self.exclusive_option, self.unique_option = options.exclusive, options.unique
        self.services: Services = task.app._celery_exclusive
        self.acquisitions: dict[str, Acquisition] = {}

    @contextmanager
    def admitted(self) -> Generator[None]:
        """Acquire the keys for a block, unless the body has to be skipped or to fail."""
        with ExitStack() as releases:
            releases.callback(self._forget)
            releases.callback(self.tell)
            lock, unique = self.claim_to_lock(releases), self.claim_to_unique_key(releases)
            for claim in (lock, unique and unique.claim):
                if claim:
                    acquisition = Acquisition(self.services, claim, self.subject(claim.key))
                    self.acquisitions[claim.key] = acquisition
                    releases.callback(acquisition.release)
            on_conflict = self.exclusive_option.on_conflict if self.exclusive_option else "wait"
            try:
                outcome = run_plan(admit_directly(lock, unique, on_conflict), self.ask)
            except StoreUnavailable as error:
                self.go_without(lock, unique, error)
            else:
                self.carry_out(outcome, unique)
            yield

    def _forget(self) -> None:
        """Keep no arguments: what the body has left may keep this run, and its acquisitions do."""
        self.acquisitions.clear()
        del self.call

    def claim_to_lock(self, releases: ExitStack) -> Claim | None:
        """Return the claim to the lock, unless the code around this run holds it already."""
        option = self.exclusive_option
        outer = self.outer
        is_retry_without_lock = outer is not None and outer.task_id == self.task_id and outer.lease is None
        key = self.key_of(option) if option and not is_retry_without_lock else None
        if option is None or key is None:
            return None
        share = share_of(self.task.name, self.task.run, option, *self.call)
        claim = new_claim(self.task_id, key, self.services.ttl(option), option.most, option.rates, share)
        if self.is_plain_eager:
            self.lease = releases.enter_context(_lease_in_memory(claim))
        else:
            self.lease = next((lease for lease in leases_of_runs() if lease.key == key), None)
        return None if self.lease else claim

    def claim_to_unique_key(self, releases: ExitStack) -> UniqueClaim | None:
        """Return the claim to the unique key, unless the code around this run holds it already."""
        option = self.unique_option
        self.unique_key = self.key_of(option) if option else None
        if option is None or self.unique_key is None or option.held_until == WINDOW:  # it runs now
            return None
        claim = new_claim(self.task_id, self.unique_key, self.services.ttl(option))
        if self.is_plain_eager:
            if option.held_until == FINISHED:
                self.unique_lease = releases.enter_context(_lease_in_memory(claim))
            return None
        for outer in runs():
            held = outer.unique
            if not held or held.claim.key != self.unique_key:
                continue
            is_own = outer.task_id == self.task_id  # a retry or replacement shares the key of its run
            if is_own or (held.until == FINISHED and held.may_hold):
                self.unique_lease = outer.unique_lease
                return None
        return UniqueClaim(claim, option.held_until, self.services.queued_ttl(option), is_acquired=False)

    @property
    def is_plain_eager(self) -> bool:
        """Whether calls run under `task_always_eager`, where nothing conflicts, unless a test wants it to."""
        return self.task.app.conf.task_always_eager and not self.services.conflicts_when_eager

    def subject(self, key: str) -> Subject:
        return Subject(self.task.name, self.task_id, key, tell=self.note)

    def key_of(self, option: Option) -> str | None:
        """Return the key. None: the arguments do not fit, for which the call itself raises an error."""
        try:
            return key_of(self.task.name, self.task.run, option, *self.call, self.services.key_headers)
        except TypeError:
            return None

    def ask(self, asked: Ask) -> Answer:
        """Send a request of the plan to the store; wait where a worker would park the message."""
        operation, acquisition = asked.operation, self.acquisitions[asked.key]
        if isinstance(operation, AcquireAlone):
            return self.services.store.apply(asked.key, operation).answer
        if isinstance(operation, Acquire):
            wait: float | None = 0
            if asked.park and self.exclusive_option and not self.services.conflicts_when_eager:
                wait = self.exclusive_option.longest_wait
            acquisition.acquire(wait)
            if asked.key != self.unique_key:
                self.lease = acquisition.lease
            return acquisition.answer
        acquisition.release()
        return Applied(True)

    def go_without(self, lock: Claim | None, unique: UniqueClaim | None, error: StoreUnavailable) -> None:
        """Let the body run without the keys that the store did not grant, if its options allow that."""
        options = [self.exclusive_option] * bool(lock) + [self.unique_option] * bool(unique)
        if not all(self.services.allows_without(option) for option in options):
            raise error
        if lock and not self.lease:
            self.runs_without_lease = True
            outcomes.runs_without_lease(self.services, self.subject(lock.key), error)
        elif unique:
            self.runs_without_lease = not self.lease
            outcomes.continues_without_key(self.subject(unique.claim.key), error)

    def carry_out(self, outcome: Admission, unique: UniqueClaim | None) -> None:
        if outcome.kind == "run":
            if unique:
                acquisition = self.acquisitions[unique.claim.key]
                may_hold = outcome.may_hold_unique
                self.unique = UniqueLease(unique.claim, unique.until, may_hold)
                self.unique_lease = acquisition.lease if may_hold else None
            if begun := next(iter(self.acquisitions.values()), None):  # of its lock, or else its unique key
                begun.note_begun()
            return
        key, existing_id = outcome.key, outcome.existing_id
        option = self.exclusive_option
        if outcome.kind == "reschedule" and option:
            if option.longest_wait is None:  # only in a test
                held = notices.held(outcome.by, outcome.others)
                text = (
                    f"task {self.task.name} would wait for lock {key}, which is {held}. In a test with "
                    "lock_store nothing would release it: end the block that holds it, or advance the clock"
                )
                raise LockHeld(text, key, existing_id, *closed_by(outcome.by))
            outcome = outcome.given_up(option.on_give_up)
        if outcome.reason == "duplicate":
            self.duplicate_of = existing_id
            if self.unique_option and not self.unique_option.may_skip:
                outcomes.duplicate(self.subject(key), existing_id, fails=True)
                raise duplicate_error(self.task.name, outcome)
        wait_s = self.acquisitions[key].wait_s
        seconds = option.longest_wait if option else None
        outcomes.ended_without_body(self.subject(key), outcome, seconds, wait_s)
        self.replace_body(self.task.name, outcome, self.exclusive_option, self.unique_option)

    def end_body(self, error: BaseException | None) -> None:
        super().end_body(error)
        unique = self.unique
        if unique and not isinstance(error, Retry):  # `apply()` runs a retry next, with this lease
            self.acquisitions[unique.claim.key].release()
            unique.may_hold = False


@contextmanager
def _lease_in_memory(claim: Claim) -> Generator[Lease]:
    """Return a lease without conflicts, in a namespace that no setting can name."""
    store = open_store("memory://", prefix="always eager")
    # No other can want it, so it needs no renewal.
    endless = replace(claim, ttl=NEVER, limit=MOST, rates=(), share=ONE_UNIT)
    store.apply(claim.key, Hold("", "", 0))  # of a run before
    granted = store.apply(claim.key, endless.acquire()).answer
    assert isinstance(granted, Granted)  # noqa: S101 - there is no limit
    try:
        yield Lease(granted.fence, claim, store, time.monotonic() + claim.ttl / SECOND, lambda: None)
    finally:
        store.apply(claim.key, claim.release())
