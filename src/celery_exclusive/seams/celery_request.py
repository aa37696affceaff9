"""Celery's requests, tracers and the objects of a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from celery.app import trace

as_dict: Final = attrgetter("request_dict")
"""Return what Celery gives to the child that executes a request."""
child_of: Final = attrgetter("worker_pid")
"""Return the pid of the child that executes a request, or the number of its greenlet."""
context_of: Final = attrgetter("_context")
"""Return the context of a request, as result backends and errbacks get it."""
was_revoked: Final = attrgetter("_already_revoked")
"""Whether the end of a request as revoked was announced."""
strategies_of: Final = attrgetter("strategies")
"""Return the functions with which a consumer receives the messages of its tasks, by their names."""
trace_ok: Final[Any] = getattr(trace, "trace_ok_t", None)
"""What a tracer returns."""
Ending: Final[Any] = getattr(trace, "TraceInfo", None)
"""The end of a task without a result: its state, and its exception."""


class RequestMixin:
    """Stands before Celery's request. Its subclass has the methods that are only declared here."""

    make_context: Callable[[Callable[[], Any]], Any]
    """Return the context of hooks and errbacks in the main process. Its argument makes Celery's own."""
    announce_revoked: Callable[..., None]
    """End a revoked or expired request: by a function that does it as Celery does, or otherwise."""

    @property
    def _context(self) -> Any:
        celerys: Any = super()
        own = vars(self)
        if "_own_context" not in own:
            own["_own_context"] = self.make_context(lambda: celerys._context)
        return own["_own_context"]

    def _announce_revoked(self, reason: Any, terminated: bool, *more: Any, **named: Any) -> None:
        announce: Any = super()._announce_revoked  # type: ignore[misc]
        self.announce_revoked(partial(announce, reason, terminated, *more, **named), terminated=terminated)

    def note_revoked(self) -> None:
        """Let Celery end this request without an announcement."""
        self._already_revoked = True


class TaskMixin:
    """Stands before the class of a task. Celery assigns a tracer whenever it (re)connects."""

    _exclusive_gate: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Return what is called in place of a tracer. Its subclass has this method."""

    @property
    def __trace__(self) -> Any:
        return vars(self).get("_exclusive_trace")

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        vars(self)["_exclusive_trace"] = tracer and self._exclusive_gate(tracer)


def wrap_banner(worker: Any, wrap: Callable[..., str]) -> None:
    """Let `wrap` make the banner of a worker; its first argument is Celery's own method."""
    if banner := getattr(worker, "startup_info", None):
        worker.startup_info = partial(wrap, banner)
