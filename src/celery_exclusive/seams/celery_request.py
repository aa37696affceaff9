"""Celery's requests, tracers and the objects of a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final

from celery.app import trace

as_dict: Final = attrgetter("request_dict")
"""Return what Celery gives to the child that executes a request."""
child_of: Final = attrgetter("worker_pid")
"""Return the pid of the child that executes a request, or the number of its greenlet."""
was_revoked: Final = attrgetter("_already_revoked")
"""Whether the end of a request as revoked was announced."""
strategies_of: Final = attrgetter("strategies")
"""Return the functions with which a consumer receives the messages of its tasks, by their names."""
trace_ok: Final[Any] = getattr(trace, "trace_ok_t", None)
"""What a tracer returns."""
Ending: Final[Any] = getattr(trace, "TraceInfo", None)
"""The end of a task without a result: its state, and its exception."""


class RequestMixin:
    """Stands before Celery's request."""

    @cached_property
    def _context(self) -> Any:
        celerys: Any = super()
        return self.make_context(lambda: celerys._context)

    def make_context(self, make: Callable[[], Any]) -> Any:
        """Return the context that hooks and errbacks get in the main process; `make` makes Celery's own."""
        return make()

    def _announce_revoked(self, reason: Any, terminated: bool, *more: Any, **named: Any) -> None:
        announce: Any = super()._announce_revoked  # type: ignore[misc]
        self.announce_revoked(partial(announce, reason, terminated, *more, **named), terminated=terminated)

    def announce_revoked(self, announce: Callable[[], None], *, terminated: bool) -> None:
        """End a revoked or expired request as Celery does, or otherwise."""
        announce()

    def note_revoked(self) -> None:
        """Let Celery end this request without an announcement."""
        self._already_revoked = True


class TaskMixin:
    """Stands before the class of a task. Celery assigns a tracer whenever it (re)connects."""

    def wrapped(self, tracer: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in place of a tracer."""
        return tracer

    @property
    def __trace__(self) -> Any:
        return vars(self).get("_gate")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        vars(self)["_gate"] = tracer and self.wrapped(tracer)


def wrap_banner(worker: Any, wrap: Callable[..., str]) -> None:
    """Let `wrap` make the banner of a worker; its first argument is Celery's own method."""
    if banner := getattr(worker, "startup_info", None):
        worker.startup_info = partial(wrap, banner)
