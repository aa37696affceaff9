"""Runs without a message: `task.apply()`, and every call under `task_always_eager`."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from celery.utils import uuid

from celery_exclusive import notices
from celery_exclusive.core.claim import FINISHED, PERIOD, STARTED, Claim, UniqueUntil, task_id
from celery_exclusive.core.operations import Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import DuplicateTask, LockHeld, StoreUnavailable
from celery_exclusive.leases.lease import Lease
from celery_exclusive.local.acquisition import Acquisition, new_claim
from celery_exclusive.options.declared import Exclusive, Unique
from celery_exclusive.options.keys import key_of
from celery_exclusive.options.option import Option
from celery_exclusive.publishing.call_options import pop_call_options
from celery_exclusive.run import Run, current_run, leases_of_runs, runs, within
from celery_exclusive.stores.base import open_store
from celery_exclusive.task import TaskMixin

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_NO_LIMIT: Final = 2**31
_FOR_EVER: Final = 2**52
"""Microseconds: nobody renews a lease that nobody can want."""


class EagerTask(TaskMixin):
    """Runs a task with options without a message."""

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

        While somebody else holds it, a task with `on_conflict="wait"` or "reschedule" blocks until it is
        free, one with "skip" returns the skip result, and one with "raise", or that has waited for
        `give_up_after`, fails with `LockHeld`. Called inside a run that holds the key, it runs under that
        one's lease. With `on_store_error="allow"` it runs without one as soon as the store does not answer.
        A task with `unique=` whose key is held, by one that is queued or runs, is skipped, or raises.
        Under `task_always_eager` no store is asked and nothing conflicts.

        Parameters:
            args, kwargs, ...: those of Celery's `apply`; `exclusive=` and `unique=` are for this call, None
                switches them off.

        Raises:
            DuplicateTask: its unique key is held, and its option says "raise".
            StoreUnavailable: the store does not answer, and `on_store_error` is not "allow".
            OptionError: the arguments cannot be a key.
            ExclusiveError: it would wait for a `lock()` that this very code holds.
        """
        id = task_id or uuid()
        call_options = pop_call_options(self.app._celery_exclusive, self.name, self, options)
        call = (args or (), kwargs or {})
        with (
            _locked_run(self, id, *call, call_options.exclusive) as run,
            _unique_lease(self, run, *call, call_options.unique) as (key, existing_id),
            within(run),
        ):
            result = super().apply(args, kwargs, link, link_error, id, *rest, **options)  # type: ignore[misc]
        if call_options.unique:
            result.key, result.existing_id = key, existing_id
            result.outcome = "published" if result.existing_id is None else "skipped"
        return result


@contextmanager
def _locked_run(task: Any, id: str, args: Any, kwargs: Any, option: Exclusive | None) -> Generator[Run]:
    outer = current_run.get()
    services: Services = task.app._celery_exclusive
    key = None if option is None or _is_retry_without_lock(outer, id) else _key(task, option, args, kwargs)
    if option is None or key is None:
        yield Run(id, outer=outer)
        return
    claim = new_claim(id, key, services.ttl(option), option.limit)
    if _is_alone(task):
        with _lease_in_memory(claim) as lease:
            yield Run(id, lease, outer)
        return
    ours = next((lease for lease in leases_of_runs() if lease.key == key), None)
    if ours:
        yield Run(id, ours, outer)
        return
    acquisition = Acquisition(services, claim, f"Task {task.name}[{id}]")
    is_patient = option.on_conflict in ("wait", "reschedule") and not services.is_rehearsal
    held, is_unguarded = None, False
    try:
        try:
            held = acquisition.acquire(wait=option.give_up_after if is_patient else 0)
        except StoreUnavailable as error:
            if not services.allows_without(option):
                raise
            is_unguarded = True
            notices.unguarded(services, task.name, id, key, error)
        run = Run(id, acquisition.lease, outer, is_unguarded=is_unguarded)
        if held:
            _resolve(run, task, option, key, held, is_rehearsal=services.is_rehearsal)
        yield run
    finally:
        acquisition.release()


@dataclass(slots=True)
class _UniqueLease:
    """The unique lease of a run without a message."""

    claim: Claim
    until: UniqueUntil
    acquisition: Acquisition
    may_hold: bool

    def end(self, error: BaseException | None) -> None:  # noqa: ARG002 - whatever it was
        self.acquisition.release()
        self.may_hold = False


@contextmanager
def _unique_lease(
    task: Any, run: Run, args: Any, kwargs: Any, option: Unique | None
) -> Generator[tuple[str | None, str | None]]:
    """Acquire the unique lease of a run; yield the key, and the task that has it already, if any."""
    services: Services = task.app._celery_exclusive
    is_over = run.skipped or run.failure
    key = None if option is None or is_over else _key(task, option, args, kwargs)
    has_already = any(
        outer.unique
        and outer.unique.claim.key == key
        and (
            (outer.unique.until == FINISHED and outer.unique.may_hold)
            or outer.task_id == run.task_id  # a retry, or a replacement
        )
        for outer in runs()
    )
    if option is None or key is None or has_already or _is_alone(task):
        yield key, None
        return
    claim = new_claim(run.task_id, key, services.ttl(option))
    acquisition = Acquisition(services, claim, f"Task {task.name}[{run.task_id}]")
    try:
        if option.held_until == PERIOD:
            own = claim.acquire_alone(services.queued_ttl(option), "period")
            answer = services.store.apply(key, own).answer
            held = answer if isinstance(answer, Held) else None
        else:
            held = acquisition.acquire(wait=0)
    except StoreUnavailable as error:
        if not services.allows_without(option):
            raise
        held = None
        notices.unleased(task.name, run.task_id, key, error)
    existing_id = None
    if held:
        existing_id = task_id(held.by[0].id)
        if option.on_conflict == "raise":
            raise DuplicateTask(
                f"task {task.name} did not run: unique key {key} is held by {existing_id}", key, existing_id
            )
        notices.duplicate(task.name, run.task_id, key, existing_id)
        run.skipped = (option.skipped(key, existing_id),)
    else:
        run.unique = _UniqueLease(
            claim, option.held_until, acquisition, may_hold=option.held_until == FINISHED
        )
    if option.held_until == STARTED:
        acquisition.release()
    try:
        yield key, existing_id
    finally:
        acquisition.release()


def _is_alone(task: Any) -> bool:
    """Whether calls run under `task_always_eager`, where nothing conflicts, unless a test wants it to."""
    return task.app.conf.task_always_eager and not task.app._celery_exclusive.is_rehearsal


def _is_retry_without_lock(outer: Run | None, id: str) -> bool:
    return outer is not None and outer.task_id == id and outer.lease is None


def _key(task: Any, option: Option, args: Any, kwargs: Any) -> str | None:
    """Return the key; None if the arguments do not fit: the call itself raises that."""
    try:
        return key_of(task.name, task.run, option, args, kwargs)
    except TypeError:
        return None


def _resolve(run: Run, task: Any, option: Exclusive, key: str, held: Held, *, is_rehearsal: bool) -> None:
    """Set the result or error of a run whose key is held."""
    holder = task_id(held.by[0].id)
    if option.on_conflict == "skip":
        notices.skipped(task.name, run.task_id, key, held.by)
        run.skipped = (option.skipped(key, holder),)
    elif option.on_conflict == "raise" or not is_rehearsal:
        end = f", and gave up after {option.give_up_after:g} s" if option.give_up_after else ""
        run.failure = LockHeld(f"task {task.name} found lock {key} {notices.held(held.by)}{end}", key, holder)
    else:
        raise LockHeld(
            f"task {task.name} would wait for lock {key}, which is {notices.held(held.by)}. In a test with "
            "lock_store nothing would release it: end the block that holds it, or advance the clock",
            key,
            holder,
        )


@contextmanager
def _lease_in_memory(claim: Claim) -> Generator[Lease]:
    """A lease that conflicts with none, in a namespace that no setting can name."""
    store = open_store("memory://", prefix="always eager")
    endless = replace(claim, ttl=_FOR_EVER, limit=_NO_LIMIT)
    granted = store.apply(claim.key, endless.acquire()).answer
    assert isinstance(granted, Granted)  # noqa: S101 - there is no limit
    try:
        yield Lease(granted.fence, claim, store, time.monotonic() + claim.ttl / SECOND, lambda: None)
    finally:
        store.apply(claim.key, claim.release())
