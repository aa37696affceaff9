"""Threads of the operating system, also where gevent has replaced threads by greenlets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from celery_exclusive.seams.python import native


def is_green() -> bool:
    """Whether gevent has replaced the sockets of this process by its own."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


class NativeThread:
    """A daemon thread that the system schedules: it runs while greenlets compute and never yield.

    Beside greenlets it must acquire none of their locks: a release by another thread may never wake the
    greenlet that waits. So it logs, and calls Celery, only through `run_in_hub`.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._runs = native("Lock")()

    def start(self) -> None:
        self._runs.acquire()
        native("start_new_thread")(self._go, (_hub() if is_green() else None,))

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, at most `timeout` seconds. Greenlets of the caller wait, too."""
        if self._runs.acquire(timeout=timeout):
            self._runs.release()

    def _go(self, hub: Any) -> None:
        try:
            _local.hub = hub
            self._run()
        finally:
            if hub:
                _hub().destroy(destroy_loop=True)  # the loop of this thread, on which its sockets waited
            self._runs.release()


def is_outside_hub() -> bool:
    return getattr(_local, "hub", None) is not None


def run_in_hub(call: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Call a function: at once, or from a `NativeThread` beside greenlets soon, in a greenlet, unawaited."""
    hub = getattr(_local, "hub", None)
    if hub:
        hub.loop.run_callback_threadsafe(import_module("gevent").spawn, lambda: call(*args, **kwargs))
    else:
        call(*args, **kwargs)


def _hub() -> Any:
    """Return gevent's hub of this thread, made if there is none."""
    return import_module("gevent").get_hub()


_local = native("local")()
"""`hub`: the gevent hub of the thread that started this one."""
