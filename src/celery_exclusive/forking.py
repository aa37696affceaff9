"""No child is forked while a thread of the main process is at work.

Whatever that thread has locked then, in Python, kombu or a driver, would be locked in the child for ever. On
Python 3.11 a `cached_property` is enough, which has one lock for all objects of its class.
"""

from __future__ import annotations

import os
import time
from _thread import LockType, allocate_lock, get_ident
from collections.abc import Iterator
from contextlib import contextmanager

from celery_exclusive.native import is_green

_PATIENCE = 0.3
"""Seconds for which a fork waits. Who works for longer waits for a server, and has no such lock meanwhile."""
_locks: dict[int, LockType] = {}
"""One for each thread that has worked: they do not wait for each other."""
_taken: list[LockType] = []


@contextmanager
def forks_wait() -> Iterator[None]:
    """Let forks wait until this work of a thread is done.

    with forks_wait():
        sweep()

    Greenlets share one thread, and would wait for each other for ever; their workers fork nobody.
    """
    if is_green():
        yield
        return
    with _locks.setdefault(get_ident(), allocate_lock()):
        yield


def _wait() -> None:
    until = time.monotonic() + _PATIENCE
    _taken.extend(
        lock for lock in list(_locks.values()) if lock.acquire(timeout=max(until - time.monotonic(), 0))
    )


def _go_on() -> None:
    while _taken:
        _taken.pop().release()


def _forget() -> None:
    _taken.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_forget)
