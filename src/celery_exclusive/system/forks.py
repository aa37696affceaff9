"""Delays forks while a thread of the main process works.

A lock that such a thread holds, in Python, kombu or a driver, would be held in the child for ever, as that of
a `cached_property` of Celery and kombu on Python 3.11. Ours have none (`system/cached.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, get_ident

from celery_exclusive.seams.python import native
from celery_exclusive.system.threads import is_green

_LONGEST_WAIT = 0.3
"""Seconds for which a fork waits. A thread that works longer waits for a server, and holds no such lock."""
_TURN = 0.01
"""Seconds for which a fork waits for one thread before the next, so that a slow thread hides no other."""
_locks: dict[int, RLock] = {}
"""A lock for each thread that has worked, so that the threads do not wait for each other."""
_taken: dict[int, list[RLock]] = {}
"""The locks that each forking thread holds."""


@contextmanager
def forks_wait() -> Iterator[None]:
    """Delay forks until the block of this thread ends.

    Greenlets share one thread, and would wait for each other for ever; their workers never fork.
    """
    if is_green():
        yield
        return
    with _locks.setdefault(get_ident(), native("RLock")()):
        yield


def _wait() -> None:
    until = time.monotonic() + _LONGEST_WAIT
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
