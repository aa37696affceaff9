"""The main process's view of a delivery: it learns of endings that no child sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import ref

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request as CeleryRequest
from celery.worker.state import task_ready
from kombu.utils.imports import symbol_by_name

from celery_exclusive.core.endings import guard_of, is_obsolete_copy
from celery_exclusive.errors import StoreError
from celery_exclusive.messages.header import DELIVERY
from celery_exclusive.run import Run, UniqueLease, within
from celery_exclusive.system.deadline import Budget, deadline
from celery_exclusive.worker.parts import parts_of, release_later
from celery_exclusive.worker.received import Received
from celery_exclusive.worker.reschedule import DeliverAgain, deliver_again
from celery_exclusive.worker.unread import Unread

if TYPE_CHECKING:
    from celery_exclusive.services import Services


_LOOK = 1
"""Seconds for which the main process waits for the store, all in all. Meanwhile it does nothing else."""
_DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded)
"""Endings of a child that may not have ended yet. All others it reported itself, outside the body."""


class RequestMixin:
    """What a Celery request of a task with options does besides."""

    _requeued = False
    _is_green = False
    _has_ended = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        task, request = self.task, self.request_dict
        self._services: Services = task.app._celery_exclusive
        self._parts = parts_of(self._services)  # of its worker: a test may begin another one
        self._unread = request[DELIVERY] = Unread.of(self)
        self._read = partial(self._unread.try_to_read, task, request, self.args, self.kwargs)
        if not self._unread.is_plain(task):
            self._read()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Celery defines these two in a subclass made per task, without calling ours: wrap them there."""
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in vars(cls):
            cls.execute_using_pool = _begins_renewal(cls.execute_using_pool)  # type: ignore[attr-defined]
            cls.on_success = _ends_renewal(cls.on_success)  # type: ignore[attr-defined]

    @property
    def _delivery(self) -> Received | None:
        """The facts of its delivery, read when needed; None without options, or if no key can be made."""
        return self._read()

    @cached_property
    def _context(self) -> Any:
        """The context of this request, as users' hooks and errbacks get it in the main process."""
        context = super()._context  # type: ignore[misc]
        for seen in (vars(context), context.headers or {}):
            seen.pop(DELIVERY, None)
        return context

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:
            self._requeued = requeue
        super().reject(requeue=requeue)  # type: ignore[misc]

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A greenlet's hard limit is reported here alone, after its body; a process's by `on_failure`."""
        try:
            with self._at_its_end():
                super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            if self._is_green:
                self._release_later(None)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        if return_ok:
            exc_info = _reported(exc_info)
        try:
            with self._at_its_end():
                super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)  # type: ignore[misc]
        finally:
            if not return_ok:  # else it comes from `on_success`
                self._release_later(self._child if issubclass(exc_info.type, _DEATHS) else None)
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, DeliverAgain):
            deliver_again(self._parts.celery.consumer, self.task.name, self.message, error)

    def _announce_revoked(self, reason: Any, terminated: bool, signum: Any, expired: bool) -> None:
        """Release the leases of a revoked or expired task; one that is terminated ends in `on_failure`."""
        if not terminated and self._is_obsolete_copy():
            task_ready(self)
            self.acknowledge()
            self._already_revoked = True
            return
        with self._at_its_end():
            super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        is_reported_again = terminated and not self._has_ended
        if not is_reported_again:
            self._release_later(None)

    def _is_obsolete_copy(self) -> bool:
        """Whether this is the copy of an offer whose task runs under another copy, or has run.

        Then it has nothing to announce. If asking acquires the key, the end of this request releases it.
        """
        delivery = self._delivery
        if not delivery or not (guard := guard_of(delivery)) or delivery.promoted is None:
            return False
        try:
            with deadline(_LOOK):
                reply = self._services.store.apply(guard.key, delivery.acquire(guard))
        except StoreError:
            return False
        return is_obsolete_copy(delivery, reply.answer)

    @contextmanager
    def _at_its_end(self) -> Iterator[None]:
        """Mark what is published now as published by the end of a run: errbacks, hooks, a retry."""
        run = Run(self.id, body_over=True, end=Budget(_LOOK))
        has_been_read = not self._unread.is_new
        may_be_unique = has_been_read or "unique" in self._unread.our_header
        if may_be_unique and self._delivery and (unique := self._delivery.unique):
            run.unique = UniqueLease(unique.claim, unique.until, may_hold=not unique.ends_by_clock)
        with within(run):
            yield

    @property
    def _child(self) -> int | None:
        """The pid of the child that runs it. A pool of greenlets calls the number of a greenlet a pid."""
        return None if self._is_green else self.worker_pid

    def _release_later(self, dying: int | None) -> None:
        if delivery := self._delivery:
            done = self.acknowledged and not self._requeued
            release_later(
                self._services, self._parts, delivery, done=done, will_be_redelivered=not done, dying=dying
            )
        elif heartbeat := self._parts.heartbeat:
            heartbeat.untrack(self._unread.token)


class _ReportedLoss(Exception):
    """A WorkerLostError as the result of a run: its child lives, and Celery must not take it for lost."""


_ReportedLoss.__name__ = WorkerLostError.__name__


def _reported(exc_info: Any) -> Any:
    """Return the error that a child has reported; that of a task that was given up under another type."""
    error = getattr(exc_info.exception, "exc", exc_info.exception)
    if isinstance(error, WorkerLostError):
        exc_info.exception = _ReportedLoss(*error.args)
    return exc_info


class Request(RequestMixin, CeleryRequest):
    """Celery's own request, with ours before it."""


def request_class(base: Any) -> Any:
    """Make the request class of a task whose own is `base`, a class or its name."""
    if base == "celery.worker.request:Request":
        return Request
    return type("Request", (RequestMixin, symbol_by_name(base)), {"__module__": __name__})


def _begins_renewal(execute_using_pool: Any) -> Any:
    @wraps(execute_using_pool)
    def execute(self: RequestMixin, pool: Any, **kwargs: Any) -> Any:
        self._is_green = pool.is_green
        heartbeat = self._parts.heartbeat
        if heartbeat and heartbeat.is_for_children:
            self._unread.events_from = self._services.events_from()
            heartbeat.expect(self.task, self._unread, self._read, partial(_child_of, ref(self)))
        try:
            return execute_using_pool(self, pool, **kwargs)
        except BaseException:
            if heartbeat:
                heartbeat.untrack(self._unread.token)
            raise

    return execute


def _child_of(request: ref[RequestMixin]) -> int | None:
    """The pid of the child that runs this request; None if Celery has forgotten the request."""
    remembered = request()
    return remembered._child if remembered else None


def _ends_renewal(on_success: Any) -> Any:
    @wraps(on_success)
    def succeed(self: RequestMixin, *args: Any, **kwargs: Any) -> Any:
        heartbeat = self._parts.heartbeat
        if heartbeat:
            heartbeat.untrack(self._unread.token)
        self._has_ended = True
        result = on_success(self, *args, **kwargs)
        if self._already_revoked:  # a greenlet that was killed, maybe while it parked
            self._release_later(None)
        return result

    return succeed
