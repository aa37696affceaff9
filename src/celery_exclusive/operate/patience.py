"""Asks a server, and gives up after some seconds, whatever its client does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery_exclusive.display import printable, safe_url
from celery_exclusive.errors import ExclusiveError, StoreUnavailable
from celery_exclusive.messages.namespace import own_broker
from celery_exclusive.system.deadline import deadline

if TYPE_CHECKING:
    from celery_exclusive.services import Services

T = TypeVar("T")
PATIENCE: Final = 5.0
"""Seconds for which a command waits for an answer of the store, the broker or the result backend."""
_SOONER: Final = 0.5
"""Seconds by which a store gives up before it is given up, since it says more."""

_given_up: Final[dict[str, Future[Any]]] = {}
"""The last call of each server that took too long. It may still hang."""


class NoAnswer(ExclusiveError):
    """A server did not answer within `PATIENCE`. The text names it."""


def ask(server: str, call: Callable[[], T]) -> T:
    """Return what a call of a server's client returns, or raise NoAnswer: it may still be executed.

    The clients of brokers and backends look names up, connect, read and try again, some without end. So the
    call runs in a thread, and is left there if it takes longer. While it hangs, its server is asked nothing
    else: a page that is loaded again and again would leave a thread each time.
    """
    silence = f"{server} did not answer within {PATIENCE:g} s"
    if (before := _given_up.get(server)) and not before.done():
        raise NoAnswer(f"{silence}, and is not asked again while that call hangs")
    _given_up.pop(server, None)
    future, context = Future[T](), copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
            future.set_exception(error)

    Thread(target=run, name="exclusive-ask", daemon=True).start()
    if not wait([future], PATIENCE).done:
        _given_up[server] = future
        raise NoAnswer(silence)
    return future.result()


def ask_broker(services: Services, call: Callable[[], T]) -> T:
    """Return what a call that uses the broker returns; see `ask`."""
    return ask(f"broker {printable(own_broker(services))}", call)


def ask_backend(services: Services, call: Callable[[], T]) -> T:
    """Return what a call that uses the result backend returns, or first makes it; see `ask`."""
    return ask(backend_name(services), call)


def backend_name(services: Services) -> str:
    return f"result backend {safe_url(str(services.app.conf.result_backend))}"


def reach(services: Services) -> None:
    """Ask the store for its epoch. Raises StoreUnavailable if it does not answer within `PATIENCE`."""
    store = services.store
    try:
        with deadline(PATIENCE - _SOONER):
            ask(f"store {printable(store.url)}", store.epoch)
    except NoAnswer as error:
        raise StoreUnavailable(str(error)) from error
