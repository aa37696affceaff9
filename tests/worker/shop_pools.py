"""The shop for pools of one process: bodies that compute, that ask the store, and that are interrupted."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

from celery import Task
from celery.concurrency.solo import TaskPool as SoloPool

from celery_exclusive import Exclusive
from celery_exclusive.core.operations import Acquire, Release
from tests.worker.shop import act, app, doors, journal, task

__all__ = ["app"]
keep_the_interpreter = ctypes.PyDLL(None).usleep
"""Sleep so many microseconds, and let no other thread run meanwhile."""


@task(exclusive=Exclusive("key"))
def wait(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key", on_conflict="skip"))
def skip(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive("key"))
def compute(self: Task, key: str, tag: str = "", hold: bool = False, seconds: float = 0) -> None:
    """A body that never yields, as when it parses or compresses; its door is a file."""
    journal.write("start", id=self.request.id, key=key, tag=tag)
    door = journal.path.parent / f"door-{tag}"
    until = time.monotonic() + seconds
    while (hold and not door.exists()) or time.monotonic() < until:
        keep_the_interpreter(5000)
    self.lease.check()
    journal.write("end", id=self.request.id, key=key, tag=tag)


@task(exclusive=Exclusive("key"))
def ask(self: Task, key: str, times: int = 0) -> int:
    """Asks the store again and again, beside others who do: returns how often the answer was its own."""
    return sum(is_own(self, key) for _ in range(times))


def is_own(task: Any, key: str) -> bool:
    task.lease.check()
    state = task.lock_state(key)
    return state.key == task.lease.key and [holder.task_id for holder in state.holders] == [task.request.id]


@task(exclusive=Exclusive("key"))
def ask_from_a_thread(self: Task, key: str) -> None:
    """The same from a thread of gevent's pool, which has a loop of its own, and from here again."""
    from gevent import get_hub

    lease = self.lease
    lease.check()
    get_hub().threadpool.apply(lease.check)
    lease.check()


@task(exclusive=Exclusive("key"))
def leave(self: Task, key: str) -> None:
    """Celery's pool of threads is told nothing of this ending."""
    raise SystemExit


@task()
def kept(self: Task) -> int:
    """How many leases the heartbeat of this worker renews."""
    return len(app._celery_exclusive.worker.roster.runs())


def end_own_greenlet() -> None:
    import gevent

    gevent.kill(gevent.getcurrent())
    gevent.sleep(60)


class OtherGreenlets(SoloPool):
    """A pool that says of itself what that of eventlet says."""

    is_green = True


class _Slow:
    """The app's store, where a task whose id tells so waits at its door before or after a call.

    "after-release" does it once it has released, "after-release-alone" kills itself there. Only the first
    time: a repeated call does not wait.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._waited: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, key: str, operation: Any, **how: Any) -> Any:
        kind = {Acquire: "acquire", Release: "release"}.get(type(operation))
        if isinstance(operation, Acquire) and operation.message is not None and not operation.at_once:
            kind = "park"
        id = operation.id.partition("/")[0]
        self._pass(id, f"before-{kind}")
        reply = self._store.apply(key, operation, **how)
        self._pass(id, f"after-{kind}")
        return reply

    def _pass(self, id: str, place: str) -> None:
        if id.startswith(place) and id not in self._waited:
            self._waited.add(id)
            journal.write("at", tag=id)
            if id.endswith("alone"):
                end_own_greenlet()
            doors.blpop([f"door:{id}"], timeout=100)


if "gevent.monkey" in sys.modules:
    app._celery_exclusive.store = _Slow(app._celery_exclusive.store)
