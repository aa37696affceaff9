"""A delivery in the main process, which sees the endings that no child sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Any
from weakref import ref

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from celery_exclusive.core.delivery import Claims
from celery_exclusive.core.endings import is_obsolete_copy, lease_that_keeps_message
from celery_exclusive.errors import StoreError
from celery_exclusive.messages.header import DELIVERY, read_header
from celery_exclusive.run import Run, UniqueLease, within
from celery_exclusive.seams.celery_request import RequestMixin as OfCelery
from celery_exclusive.seams.celery_request import as_dict, child_of, was_revoked
from celery_exclusive.system.deadline import Budget, deadline
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.reading import Delivered, Received, read, release_unique_key_of, show_origin
from celery_exclusive.worker.reschedule import DeliverAgain, deliver_again

if TYPE_CHECKING:
    from celery_exclusive.services import Services


_LOOK = 1
"""Seconds for which the main process, which does nothing else meanwhile, waits for the store, all in all."""
_DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded)
"""Endings of a child that may not have ended yet. A child reports all others itself, outside the body."""


class RequestMixin(OfCelery):
    """The additions to a Celery request of a task with options."""

    _requeued = False
    _has_ended = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        services: Services = self.task.app._celery_exclusive
        self._worker: WorkerContext = services.worker or WorkerContext(services)  # a test may begin another
        self._delivered = as_dict(self)[DELIVERY] = Delivered.of(self, self._worker.mark)
        self._worker.note_arrival(self.task, self._delivered.headers)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap `on_success` in Celery's subclass for each task, which does not call ours."""
        super().__init_subclass__(**kwargs)
        if "on_success" in vars(cls):
            cls.on_success = _noting_end(cls.on_success)  # type: ignore[attr-defined]

    def show_first(self) -> None:
        """Let `control terminate` and `inspect query_task` find the first delivery that runs this task here.

        Celery knows the newest, which may be a copy of an offer, and none when that has ended.
        """
        begun = self._worker.begun.get(self.id, [])
        if (first := next((found for it in begun if (found := it())), None)) is None:
            return
        state.requests[self.id] = first
        if all(it() is not first for it in begun):  # it has ended meanwhile, in another thread
            state.requests.pop(self.id, None)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        self._worker.begun.setdefault(self.id, []).append(ref(self))
        self.show_first()

    def _note_end(self) -> None:
        begun = self._worker.begun.get(self.id, [])
        begun[:] = [it for it in begun if it() not in (self, None)]
        if begun:
            self.show_first()
        else:
            self._worker.begun.pop(self.id, None)

    def _read(self) -> Received | None:
        """Read the delivery. None: no options, or no key can be made; then its unique key is released."""
        came = self._delivered
        try:
            return read(came, self.task, as_dict(self), self.args, self.kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, the gate raises it if a body would begin
            release_unique_key_of(self._worker.services, self.id, came.headers, redelivered=came.redelivered)
            return None

    def make_context(self, make: Callable[[], Any]) -> Any:
        """Return the context of this request as users' hooks and errbacks get it in the main process."""
        if header := read_header(self._worker.services, self.message.headers, self.id, self.task.name):
            show_origin(as_dict(self), header)
        context = make()
        for seen in (vars(context), context.headers or {}):
            seen.pop(DELIVERY, None)
        return context

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:
            self._requeued = requeue
        super().reject(requeue=requeue)  # type: ignore[misc]

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Release a greenlet's leases at its hard limit, after the body; a process's come to `on_failure`."""
        delivery = self._read()
        try:
            with self._at_its_end(delivery):
                super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            if not soft:
                self._note_end()
            if self._worker.is_green:
                self._release_later(delivery)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        if return_ok:  # it comes from `on_success`: a child has reported it
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            if isinstance(error, WorkerLostError):  # of a task that was given up
                exc_info.exception = _ReportedLoss(*error.args)
            with self._at_its_end(None):
                super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=True)  # type: ignore[misc]
            if isinstance(error, DeliverAgain):
                deliver_again(self._worker.celery.consumer, self.task.name, self.message, error)
            return
        is_death = issubclass(exc_info.type, _DEATHS)
        # The claims that a killed child has reported: a key might be another one by now.
        slot = self._worker.roster.find(self._delivered.token) if is_death else None
        claims = slot.claims if slot else self._read()
        # A pool of greenlets has numbers of greenlets as pids.
        dying = child_of(self) if is_death and not self._worker.is_green else None
        try:
            with self._at_its_end(claims):
                super().on_failure(exc_info, send_failed_event=send_failed_event)  # type: ignore[misc]
        finally:
            self._note_end()
            self._release_later(claims, dying)

    def announce_revoked(self, announce: Callable[[], None], *, terminated: bool) -> None:
        """Release the leases of a revoked or expired task; one that is terminated ends in `on_failure`."""
        delivery = self._read()
        if not terminated and delivery and self._is_obsolete_copy(delivery):
            state.task_ready(self)
            self._note_end()
            self.acknowledge()
            self.note_revoked()
            return
        with self._at_its_end(delivery):
            announce()
        self._note_end()
        is_reported_again = terminated and not self._has_ended
        if not is_reported_again:
            self._release_later(delivery)
            if delivery:  # another delivery of its message may run
                done = not delivery.redelivered
                self._worker.services.releaser.add_retry(self.id, delivery.header, done=done)

    def _is_obsolete_copy(self, delivery: Received) -> bool:
        """Whether this is the copy of an offer whose task runs as another copy, or has run.

        Such a copy announces nothing. If this request acquires the key, its end releases it.
        """
        guard = lease_that_keeps_message(delivery)
        if guard is None or delivery.promoted is None:
            return False
        try:
            with deadline(_LOOK):
                reply = self._worker.services.store.apply(guard.key, delivery.acquire(guard))
        except StoreError:
            return False
        return is_obsolete_copy(delivery, reply.answer)

    @contextmanager
    def _at_its_end(self, delivery: Claims | None) -> Iterator[None]:
        """Mark messages that are published now as published by the end of a run: errbacks, hooks, a retry."""
        run = Run(self.id, body_over=True, end=Budget(_LOOK))
        if delivery and (unique := delivery.unique):
            run.unique = UniqueLease(unique.claim, unique.until, may_hold=not unique.ends_by_clock)
        with within(run):
            yield

    def _release_later(self, delivery: Claims | None, dying: int | None = None) -> None:
        """Let the background releaser release the leases of the delivery, once `dying` is gone."""
        if delivery:
            done = self.acknowledged and not self._requeued
            self._worker.services.releaser.add_run(delivery, done=done, redelivered=not done, dying=dying)


class _ReportedLoss(Exception):
    """A WorkerLostError that is the result of a run. Its child lives, and must not count as lost."""


_ReportedLoss.__name__ = WorkerLostError.__name__


def show_first(request: Any) -> None:
    """Show the first delivery of a task to commands, when a consumer has got this one."""
    if isinstance(request, RequestMixin):
        request.show_first()


@cache
def request_class(base: Any) -> Any:
    """Make the request class of a task whose own request class is `base`, a class or its name."""
    return type("Request", (RequestMixin, symbol_by_name(base)), {"__module__": __name__})


def _noting_end(on_success: Any) -> Any:
    @wraps(on_success)
    def succeed(self: RequestMixin, *args: Any, **kwargs: Any) -> Any:
        self._has_ended = True
        try:
            result = on_success(self, *args, **kwargs)
        finally:
            self._note_end()
        if was_revoked(self):  # a greenlet that was killed, maybe while it parked
            self._release_later(self._read())
        return result

    return succeed
