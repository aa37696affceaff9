"""The gate around a task's body: nobody enters without a lease, everybody gives it back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from billiard.einfo import ExceptionInfo
from celery.app.task import Task as CeleryTask
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.states import IGNORED, REJECTED

from celery_exclusive import notices
from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Answer, Done, Granted, Held, Parked, Stale
from celery_exclusive.errors import ExclusiveError, StoreUnavailable
from celery_exclusive.keys import preview
from celery_exclusive.lease import Lease
from celery_exclusive.publish import DELIVERY
from celery_exclusive.stores.base import Reply
from celery_exclusive.task import Run, TaskMixin, current_run
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.parking import Post

if TYPE_CHECKING:
    from celery_exclusive.install import Installation

T = TypeVar("T")


class GatedTask(TaskMixin):
    """Stands before the class of every task with options.

    Celery assigns a tracer to `__trace__` whenever it (re)connects; each is wrapped by a gate.
    """

    @property
    def __trace__(self) -> Any:
        return vars(self).get("_gate")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        vars(self)["_gate"] = tracer and Gate(self, tracer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = current_run.get()
        call = super().__call__  # type: ignore[misc]
        if getattr(call, "__func__", None) is CeleryTask.__call__ and not self.request.called_directly:
            call = self.run  # Celery's own would hide the request that its tracer has made
        if run is None or run.entered or run.task_id != self.request.id:
            return call(*args, **kwargs)
        run.entered = True
        try:
            if run.failure:
                raise run.failure
            if run.skipped:
                return run.skipped[0]
            return call(*args, **kwargs)
        finally:
            run.body_over = True


class Gate:
    """Wraps one task's tracer."""

    def __init__(self, task: Any, tracer: Callable[..., Any]) -> None:
        self.task = task
        self.tracer = tracer
        self.installation: Installation = task.app._celery_exclusive

    def __call__(self, uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        delivery = request.pop(DELIVERY, None) if request else None
        if isinstance(delivery, Exception):  # there is no key for this message: the body must not be entered
            return _trace(self.tracer, Run(uuid, failure=delivery), uuid, args, kwargs, request)
        if delivery is None:
            return self.tracer(uuid, args, kwargs, request)
        return _Passage(self, delivery, uuid, args, kwargs, request).trace()


class _Passage:
    """One delivery on its way through the gate."""

    def __init__(
        self, gate: Gate, delivery: Delivery, uuid: str, args: Any, kwargs: Any, request: Any
    ) -> None:
        self.task, self.installation, self.tracer = gate.task, gate.installation, gate.tracer
        self.call = (uuid, args, kwargs, request)
        self.delivery = delivery
        self.option = self.installation.option(self.task)
        self.post = Post(self.task.app)
        self.id = uuid
        self.is_unanswered = False

    @property
    def lock(self) -> str:
        """The key as people may read it."""
        _, args, kwargs, _ = self.call
        told = self.installation.settings.exclusive_preview and preview(
            self.task.run, self.option, args, kwargs
        )
        return f"{self.delivery.key} ({told})" if told else self.delivery.key

    def trace(self) -> Any:
        """Go through the gate: into the body, to the skip result, or back."""
        run = Run(self.id)
        may_hold, done = True, False
        try:
            answer = self.enter(run)
            may_hold = isinstance(answer, Granted)
            if answer is None:
                return _ends(Reject("the store of locks does not answer", requeue=True), REJECTED)
            if isinstance(answer, (Parked, Stale)):
                return _ends(Ignore(type(answer).__name__.lower()), IGNORED)
            result = _trace(self.tracer, run, *self.call)
            done = not _is_requeued(result)
            return result
        finally:
            if may_hold:
                self.leave(run, done=done)

    def enter(self, run: Run) -> Answer | None:
        """Take the lease, or find out what becomes of this delivery instead.

        None: the store stayed down, and the message has to go back to the broker. It is never dropped: what
        has been acknowledged is published again, or waits on for whichever of the two comes back first.
        """
        while True:
            try:
                return self.ask(run)
            except StoreUnavailable as error:
                notices.given_back(self.task.name, self.id, error)
            if self.task.acks_late:
                return None
            try:
                pause = self.installation.settings.exclusive_store_wait
                self.post.publish(self.delivery.letter.delayed(pause))
            except Exception as error:  # noqa: BLE001 - whatever it is, there is another try
                notices.trouble(f"task {self.id} could not be published again and waits on", error)
            else:
                return Stale()  # this delivery is over, its copy goes on

    def ask(self, run: Run) -> Answer:
        asked = time.monotonic()
        answer = self.acquire(run, park=self.option.on_conflict == "wait")
        if isinstance(answer, Held) and self.is_kin(answer):
            answer = self.acquire(run, park=True)
        name = self.task.name
        if isinstance(answer, Granted):
            key, id, token = self.delivery.key, self.delivery.id, self.delivery.token
            ttl = self.delivery.ttl / SECOND
            run.lease = Lease(key, answer.fence, ttl, self.installation.store, id, token, asked + ttl)
        elif isinstance(answer, Parked):
            notices.parked(name, self.id, self.lock, answer.position, answer.by)
        elif isinstance(answer, Held):
            run.skipped = (self.option.skipped(self.delivery.key, notices.task_id(answer.by[0].id)),)
            notices.skipped(name, self.id, self.lock, answer.by)
        elif isinstance(answer, Stale):
            notices.stale(name, self.id, self.lock)
        return answer

    def is_kin(self, held: Held) -> bool:
        """Whether the place is held by an earlier run of ourselves, or by the parent that is just ending."""
        return any(notices.task_id(rival.id) in self.delivery.kin for rival in held.by)

    def acquire(self, run: Run, *, park: bool) -> Answer:
        """Acquire or park, in one call of the store, and publish what that wakes."""
        reply, interruption = self.patiently(self.delivery.acquire(self.option.limit, park=park))
        self.post.follow_up(reply)
        if isinstance(interruption, Exception):
            run.failure = interruption
        elif interruption:
            raise interruption
        return reply.answer

    def patiently(self, operation: Acquire) -> tuple[Reply, BaseException | None]:
        """While the store is down, wait for it in this slot."""
        deadline = time.monotonic() + self.patience()
        pause = 0.1
        while True:
            try:
                return _finish(lambda: self.apply(operation))
            except StoreUnavailable as error:
                if time.monotonic() + pause > deadline:
                    raise
                notices.store_wait(self.task.name, self.id, error)
                try:
                    time.sleep(pause * random.uniform(0.5, 1.5))
                except SoftTimeLimitExceeded:
                    raise error from None
            pause = min(pause * 2, 5.0)

    def apply(self, operation: Acquire) -> Reply:
        """An answer may be lost after the store did its part: the next try is that of a redelivered copy."""
        if self.is_unanswered:
            operation = replace(operation, redelivered=True)
        self.is_unanswered = True
        reply = self.installation.store.apply(self.delivery.key, operation)
        self.is_unanswered = False
        return reply

    def patience(self) -> float:
        """How long to wait for the store: time limits run meanwhile, and must not end what has not begun."""
        task, conf = self.task, self.task.app.conf
        hard, soft = self.call[3].get("timelimit") or (None, None)
        limits = (
            hard or task.time_limit or conf.task_time_limit,
            soft or task.soft_time_limit or conf.task_soft_time_limit,
        )
        waits = [limit / 2 for limit in limits if limit]
        return float(min([self.installation.settings.exclusive_store_wait, *waits]))

    def leave(self, run: Run, *, done: bool) -> None:
        """Give the lease back and wake whoever is next. Never raises after successful work."""
        release = self.delivery.release(done=done)
        for last_try in (False, True):
            try:
                reply, interruption = _finish(
                    lambda: self.installation.store.apply(self.delivery.key, release)
                )
            except Exception as error:  # noqa: BLE001 - the task has its result
                if last_try:
                    what = f"the lease of task {self.id} on lock {self.lock} will end by its ttl"
                    notices.trouble(what, error)
                continue
            if reply.answer == Done(False) and run.lease and not last_try and not interruption:
                notices.lease_lost(self.task.name, self.id, self.lock)
            self.post.follow_up(reply)
            if interruption and not isinstance(interruption, Exception):
                raise interruption
            return


def _trace(tracer: Callable[..., Any], run: Run, *call: Any) -> Any:
    mark = current_run.set(run)
    try:
        return tracer(*call)
    finally:
        current_run.reset(mark)


def _finish(call: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Do a store call to its end, whatever a signal handler raises into it meanwhile.

    A soft time limit, or a termination, may land anywhere in it. Every verb can be repeated, so it is, and
    the interruption is told afterwards.
    """
    interruption: BaseException | None = None
    for _ in range(3):
        try:
            return call(), interruption
        except ExclusiveError:
            if interruption and not isinstance(interruption, Exception):
                raise interruption from None
            raise
        except BaseException as error:  # noqa: BLE001 - told, not swallowed
            interruption = error
    raise interruption or AssertionError


def _ends(exc: Exception, state: str) -> Any:
    """What Celery's tracer returns for a task that raised this."""
    try:
        raise exc
    except type(exc):
        info = ExceptionInfo(internal=True)
    return trace_ok_t(info, TraceInfo(state, exc), None, None)


def _is_requeued(result: Any) -> bool:
    info = result.info
    return info is not None and info.state == REJECTED and bool(getattr(info.retval, "requeue", False))
