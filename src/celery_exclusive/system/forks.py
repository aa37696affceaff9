"""No child is forked while a thread of the main process is at work.

Whatever that thread has locked then, in Python, kombu or a driver, would be locked in the child for ever. On
Python 3.11 a `cached_property` is enough, which has one lock for all objects of its class.
"""

from __future__ import annotations

import os
import time
from _thread import RLock, get_ident
from collections.abc import Iterator
from contextlib import contextmanager

from celery_exclusive.system.threads import is_green

_PATIENCE = 0.3
"""Seconds for which a fork waits. Who works for longer waits for a server, and has no such lock meanwhile."""
_TURN = 0.01
"""Seconds for which it waits for one thread before it looks at the next: one that is slow hides no other."""
_locks: dict[int, RLock] = {}
"""One for each thread that has worked: they do not wait for each other."""
_taken: dict[int, list[RLock]] = {}
"""By the threads that fork."""


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
    with _locks.setdefault(get_ident(), RLock()):
        yield


def _wait() -> None:
    until = time.monotonic() + _PATIENCE
    taken = _taken.setdefault(get_ident(), [])
    busy = list(_locks.values())
    while busy and time.monotonic() < until:
        for lock in list(busy):
            if lock.acquire(timeout=_TURN):
                busy.remove(lock)
                taken.append(lock)


def _go_on() -> None:
    for lock in _taken.pop(get_ident(), ()):
        lock.release()


def _forget() -> None:
    _taken.clear()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_forget)
