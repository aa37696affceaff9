"""The main process's view of a delivery: it makes the claim, and learns of endings that no child sees."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.serialization import get_pickleable_exception
from celery.worker.request import Request as CeleryRequest
from kombu.utils.imports import symbol_by_name

from celery_exclusive.publish import DELIVERY
from celery_exclusive.worker.delivery import Delivery
from celery_exclusive.worker.reaper import Ended

if TYPE_CHECKING:
    from celery_exclusive.install import Installation


_DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded)
"""Endings of a child that may not have ended yet. All others it told itself, outside the body."""


class RequestMixin:
    """What a Celery request of a task with options does besides."""

    _delivery: Delivery | None = None
    _requeued = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._installation: Installation = self.task.app._celery_exclusive
        option = self._installation.option(self.task)
        ttl = option.ttl or self._installation.settings.exclusive_ttl
        try:
            self._delivery = self.request_dict[DELIVERY] = Delivery.of(self.task, option, ttl, self)
        except Exception as error:  # noqa: BLE001 - the gate raises it; here it would stop the consumer
            self.request_dict[DELIVERY] = get_pickleable_exception(error)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Celery defines these two in a subclass made per task, without calling ours: wrap them there."""
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in vars(cls):
            cls.execute_using_pool = _keeping(cls.execute_using_pool)  # type: ignore[attr-defined]
            cls.on_success = _dropping(cls.on_success)  # type: ignore[attr-defined]

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:
            self._requeued = requeue
        super().reject(requeue=requeue)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        try:
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)  # type: ignore[misc]
        finally:
            self._drop()
            if not return_ok:
                self._ended(self.worker_pid if issubclass(exc_info.type, _DEATHS) else None)

    def _announce_revoked(self, reason: Any, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        if not terminated:
            self._drop()
            self._ended(None)

    def _ended(self, dying: int | None) -> None:
        if self._delivery and self._installation.reaper:
            done = self.acknowledged and not self._requeued
            self._installation.reaper.end(Ended(self._delivery, dying, done))

    def _drop(self) -> None:
        if self._delivery and self._installation.heartbeat:
            self._installation.heartbeat.drop(self._delivery)


class Request(RequestMixin, CeleryRequest):
    """Celery's own request, with ours before it."""


def request_class(base: Any) -> Any:
    """The request class of a task whose own is `base`: a class, or its name as Celery allows."""
    if base == "celery.worker.request:Request":
        return Request
    return type("Request", (RequestMixin, symbol_by_name(base)), {"__module__": __name__})


def _keeping(execute_using_pool: Any) -> Any:
    @wraps(execute_using_pool)
    def execute(self: RequestMixin, *args: Any, **kwargs: Any) -> Any:
        heartbeat = self._installation.heartbeat
        if self._delivery and heartbeat:
            heartbeat.keep(self._delivery, lambda: self.worker_pid)
        try:
            return execute_using_pool(self, *args, **kwargs)
        except BaseException:
            self._drop()
            raise

    return execute


def _dropping(on_success: Any) -> Any:
    @wraps(on_success)
    def succeed(self: RequestMixin, *args: Any, **kwargs: Any) -> Any:
        self._drop()
        return on_success(self, *args, **kwargs)

    return succeed
