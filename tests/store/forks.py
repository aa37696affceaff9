"""Forked children that use the store of their parent."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from celery_exclusive.core.operations import Acquire, Granted, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Store


def in_a_fork(does_hold: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if does_hold() else 1
        finally:
            os._exit(status)
    try:
        return os.waitpid(pid, 0)[1] == 0
    except BaseException:  # the test has timed out
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def fork_while_threads_call(store: Store) -> None:
    """Three children acquire a key each, while threads of their parent acquire and release others."""
    is_over = threading.Event()

    def acquire(key: str) -> bool:
        return isinstance(store.apply(key, Acquire("a", "token", 30 * SECOND)).answer, Granted)

    def work(key: str) -> None:
        while not is_over.is_set():
            acquire(key)
            store.apply(key, Release("a", "token"))

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, key) for key in "abc"]
        try:
            for key in ("child 1", "child 2", "child 3"):
                assert in_a_fork(lambda key=key: acquire(key))
        finally:
            is_over.set()
        for worker in workers:
            worker.result()
