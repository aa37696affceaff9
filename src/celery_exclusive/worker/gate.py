"""The gate around a task's body: no run enters without a lease, every run releases it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery.app.task import Task as CeleryTask

from celery_exclusive.errors import ExclusiveError
from celery_exclusive.leases.lease import superseded
from celery_exclusive.messages.header import DELIVERY
from celery_exclusive.run import Run, current_run, within
from celery_exclusive.seams.celery_request import TaskMixin
from celery_exclusive.worker.body import NEVER_RUN, never_run
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.execution import Execution
from celery_exclusive.worker.interruption import interruptible
from celery_exclusive.worker.reading import Delivered, read, release_unique_key_of

if TYPE_CHECKING:
    from celery_exclusive.services import Services


class GatedTask(TaskMixin):
    """A mixin before the class of every task with options. It wraps each of its tracers by a gate."""

    if TYPE_CHECKING:
        name: str
        run: Callable[..., Any]
        request: Any

    def _exclusive_gate(self, tracer: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_through_gate, self, tracer)

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """Let the heartbeat expect this task, before the consumer receives its first message."""
        worker: WorkerContext | None = app._celery_exclusive.worker
        if worker and worker.heartbeat:
            worker.heartbeat.look_more_often_for(self)
        return super().start_strategy(app, consumer, **kwargs)  # type: ignore[misc]

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Mark the run as begun. If a hook fails here, the body publishes nothing."""
        run = current_run.get()
        if run is None or run.task_id != task_id:
            super().before_start(task_id, args, kwargs)  # type: ignore[misc]
            return
        run.body_over = False
        if run.pending_outcomes:
            run.tell()
        try:
            super().before_start(task_id, args, kwargs)  # type: ignore[misc]
        except BaseException as error:
            run.end_body(error)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run, request = current_run.get(), self.request
        call = super().__call__  # type: ignore[misc]
        if run is None or run.body_begun or run.task_id != request.id:
            return call(*args, **kwargs)
        if request.is_eager and getattr(call, "__func__", None) is CeleryTask.__call__:
            call = self.run  # only in a worker does Celery's own keep the request that its tracer has made
        run.body_begun = True
        ended_by: BaseException | None = None
        try:
            if run.failure:
                raise run.failure
            if run.skipped:
                return run.skipped[0]
            result = call(*args, **kwargs)
            if type(result) in NEVER_RUN:
                raise never_run(self.name, result)
            return result
        except BaseException as error:
            if not run.is_superseded_by(error):
                ended_by = error
                raise
            if run.skipped:
                return run.skipped[0]
            ended_by = run.failure
            raise cast("Exception", ended_by) from error
        finally:
            run.end_body(ended_by)

    def on_replace(self, sig: Any) -> Any:
        """Send the replacement, unless a newer call has superseded the run: then it ends as that."""
        run = current_run.get()
        if run and run.lease and run.task_id == self.request.id and (newer := run.lease.newer_call(every=0)):
            raise superseded(run.lease.key, newer)
        return super().on_replace(sig)  # type: ignore[misc]


def _through_gate(
    task: Any, tracer: Callable[..., Any], uuid: str, args: Any, kwargs: Any, request: Any = None
) -> Any:
    """Execute a task in place of its tracer, which the execution calls if the delivery is admitted."""
    came: Delivered | None = request.pop(DELIVERY, None) if request else None
    if came is None:
        return tracer(uuid, args, kwargs, request)
    request["id"] = uuid  # the body of the message may have said another one
    services: Services = task.app._celery_exclusive
    worker: WorkerContext = services.worker or WorkerContext(services)
    try:
        delivery = read(came, task, request, args, kwargs)
        if delivery and not worker.sees_runs:
            # A failure, and no requeue: this worker would get the message again at once, without an end.
            raise ExclusiveError(
                f"task {task.name} was not started, since no heartbeat of its worker would renew its lease "
                "in this process: restart the worker, and let it import the module of the task at its start "
                "(include=). If that does not help, use --pool=gevent, threads, prefork or solo"
            )
        slot = worker.roster.begin(delivery) if delivery else None
    except Exception as error:  # noqa: BLE001 - it can have no lease, or none that lasts: no body may begin
        release_unique_key_of(services, came.id, came.headers, redelivered=came.redelivered)
        with within(Run(uuid, failure=error)):
            return tracer(uuid, args, kwargs, request)
    if delivery is None or slot is None:
        return tracer(uuid, args, kwargs, request)
    is_over = True
    try:
        execution = Execution(task, tracer, delivery, (uuid, args, kwargs, request), worker, slot)
        with interruptible(execution, slot):
            return execution.execute()
    except BaseException as error:
        # A child that is terminated leaves its slot: what the run may still hold is for its parent.
        is_over = isinstance(error, Exception) or not worker.roster.is_shared
        raise
    finally:
        if is_over:
            worker.roster.end(slot)
