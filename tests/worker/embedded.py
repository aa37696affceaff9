"""A worker in the test's own process, as `celery.contrib.testing` starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from celery import Celery, _state, signals
from celery.contrib.testing.worker import start_worker
from celery.utils import uuid

from celery_exclusive import install


def memory_app(name: str, **conf: Any) -> Celery:
    """An app whose broker is the memory of this process.

    Its queue has a name of its own: all apps of a process share that memory, with whatever earlier tests
    published there.
    """
    app = install(Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False))
    app.conf.update({"task_default_queue": uuid(), "exclusive_store": f"memory://{uuid()}", **conf})
    app.conf.broker_transport_options = {"polling_interval": 0.02}
    return app


@contextmanager
def embedded(app: Celery, pool: str, slots: int = 1) -> Iterator[Callable[[], None]]:
    """Run a worker of this app in a thread; the other tests keep their logging and their current app.

    Yields what ends the worker while this app is still the current one, as its tasks expect.

    Let its app be a `memory_app`: Celery leaves the connections of a worker that is terminated open.
    """
    default, current = _state.default_app, _state._tls.current_app
    signals.setup_logging.connect(_leave_logging)
    try:
        with ExitStack() as worker:
            worker.enter_context(
                start_worker(app, slots, pool, perform_ping_check=False, shutdown_timeout=60)
            )
            yield worker.close
    finally:
        signals.setup_logging.disconnect(_leave_logging)
        _state.set_default_app(default)
        _state._set_current_app(current)


def _leave_logging(**_: Any) -> None:
    """Celery configures logging only if nobody listens to this signal."""
