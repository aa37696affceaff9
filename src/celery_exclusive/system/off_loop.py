"""Runs the blocking calls of coroutines in a few threads, never in the event loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor  # redis-py needs it, and it is too late at exit
from contextvars import copy_context
from threading import get_ident
from typing import Final, TypeVar

from celery_exclusive.system.threads import is_green

T = TypeVar("T")
_THREADS: Final = 8
"""A call of a store may need a connection each, so they are few. No call outlasts the store's timeout."""
_executors: Final[dict[int, ThreadPoolExecutor]] = {}
"""The threads of this process, by its pid: a forked child has no threads of its parent."""


async def off_loop(call: Callable[[], T], clean_up: Callable[[], object] | None = None) -> T:
    """Return what a blocking call returns, and let the event loop run meanwhile.

    If the coroutine is cancelled or closed, a call that has begun continues without it. After such a call,
    also after its failure, `clean_up` runs in a thread: it undoes the effect of the call, or does it again.
    """
    from asyncio import get_running_loop, wrap_future

    future = _submit(call)
    try:
        return await wrap_future(future, loop=get_running_loop())
    except BaseException:
        if clean_up:
            future.add_done_callback(lambda _: _submit(clean_up))
        raise


def is_in_loop() -> bool:
    """Whether this code would block an event loop. Without asyncio imported there is none.

    With gevent it is False: a loop seems to run in all greenlets of its thread.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or is_green():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def thread_and_task() -> tuple[int, object]:
    asyncio = sys.modules.get("asyncio")
    try:
        task = asyncio.current_task() if asyncio else None
    except RuntimeError:  # no event loop runs here
        task = None
    return get_ident(), task


def _submit(call: Callable[[], T]) -> Future[T]:
    """Begin a call in a thread. Where no thread starts, as at the exit of the interpreter, call it now."""
    try:
        return _executor().submit(copy_context().run, call)
    except RuntimeError:
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
            future.set_exception(error)
        return future


def _executor() -> ThreadPoolExecutor:
    pid = os.getpid()
    executor = _executors.get(pid)
    if executor is None:
        _executors.clear()
        executor = _executors[pid] = ThreadPoolExecutor(_THREADS, "celery-exclusive")
    return executor
