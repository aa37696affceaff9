"""A process that takes locks, for tests: `python -m tests.store.lock_process URL SCENE [ARGUMENT]`.

It tells what happens in lines of text, and waits for a line where a test has to decide.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import timeit
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery

from celery_exclusive import (
    Exclusive,
    ExclusiveError,
    LeaseLost,
    LockHeld,
    StoreUnavailable,
    Unique,
    install,
    lock,
)
from tests.worker.journal import Journal

app = install(Celery("process", broker="memory://"))


def tell(*what: object) -> None:
    print(*what, flush=True)  # noqa: T201


def hold(ttl: str) -> None:
    """Hold it until told to end."""
    with lock("k", ttl=float(ttl)) as lease:
        tell("held", lease.fence)
        sys.stdin.readline()
        try:
            lease.check()
        except LeaseLost:
            tell("lost")
    tell("released")


def contend(journal: str) -> None:
    """Hold it again and again for an instant, for as long as others do."""
    record = Journal(journal)
    for turn in range(40):
        with lock("k", ttl=5) as lease:
            record.write("start", id=turn, fence=lease.fence)
            time.sleep(0.001)
            record.write("end", id=turn, fence=lease.fence)


def roam(journal: str) -> None:
    """Hold one of three locks after the other for an instant, until told to end."""
    record = Journal(journal)
    is_over = threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and is_over.set(), daemon=True).start()
    tell("begins")
    turn = os.getpid()
    while not is_over.is_set():
        key = f"k{turn % 3}"
        with lock(key, ttl=60) as lease:
            record.write("start", id=turn, key=key, fence=lease.fence)
            time.sleep(0.001)
            record.write("end", id=turn, key=key, fence=lease.fence)
        turn += 1


def fork(ttl: str) -> None:
    """Fork while holding it: the child leaves the block too, and then wants it for itself."""
    guard = lock("k", ttl=float(ttl))
    with guard as lease:
        child = os.fork()
        if not child:
            try:
                guard.release()
            except ExclusiveError as error:
                tell("child:", error)
        else:
            sys.stdin.readline()
            lease.check()
            tell("parent: still held")
    if child:
        tell("parent: child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    try:
        with lock("k", wait=0):
            tell("child: two at once")
    except LockHeld as error:
        tell("child: held by", error.holder)
    with guard as lease:  # waits until the parent has released
        time.sleep(3 * float(ttl))
        lease.check()
    tell("child: held it itself")
    os._exit(0)


def fork_in_body(ttl: str) -> None:
    """Fork in the body of a task that `apply()` runs, and let the child leave it first."""

    @app.task(bind=True, exclusive=Exclusive(key="k", ttl=float(ttl)))
    def body(self: Any) -> str:
        child = os.fork()
        if not child:
            return "child: left"
        os.waitpid(child, 0)
        self.lease.check()
        return "parent: still held"

    tell(body.apply(throw=True).get())


def call(which: str) -> None:
    """Call a task once, and end as soon as that has failed."""

    @app.task(name="one", unique=Unique())
    def one() -> None: ...

    @app.task(name="ordered", exclusive=Exclusive(order="published"))
    def ordered() -> None: ...

    task = app.tasks[which]
    task.lock_state()
    tell("connected")
    sys.stdin.readline()
    try:
        task.delay()
    except StoreUnavailable as error:
        tell("refused:", error)


class Alarm(Exception):
    """What a signal raises, at any place, while it `may_ring`."""

    may_ring = False
    raised = 0


def ring(*_: object) -> None:
    if Alarm.may_ring:
        Alarm.raised += 1
        raise Alarm


def be_interrupted(times: str) -> None:
    """Let a signal raise at random moments of taking, holding, waiting and releasing.

    What stays locked until its ttl since neither acquire() nor release() was at work is not counted.
    """
    signal.signal(signal.SIGALRM, ring)
    cycle = min(timeit.repeat(lambda: use(lock("k", ttl=1), in_block=True), repeat=20, number=1))
    caught = left = under_way = 0
    for turn in range(int(times)):
        owner = lock("k", ttl=1)
        place: list[str] = []
        if turn % 4 == 0:
            owner.acquire()
        try:
            try:
                Alarm.may_ring = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 1.5 * cycle))
                use(lock("k", ttl=1, wait=5 * cycle), in_block=turn % 2 == 0)
                time.sleep(1)
            finally:
                Alarm.may_ring = False
        except Alarm as alarm:
            caught += 1
            place = [frame.name for frame in traceback.extract_tb(alarm.__traceback__)]
        except LockHeld:
            pass
        if turn % 4 == 0:
            owner.release()
        after = lock("k", ttl=1, wait=0)
        if not after.acquire():
            if "_ask" in place:  # the server may execute the request after that of the release
                under_way += 1
            elif not is_between(place):
                left += 1
                tell("left by", *place)
            after = lock("k", ttl=1, wait=60)
            with ThreadPoolExecutor(1) as other:  # here an interrupted block would count as one around it
                is_free = other.submit(after.acquire).result()
            if not is_free:
                tell("stuck")
                return
        after.release()
    tell("raised", Alarm.raised, "caught", caught, "left", left, "under way", under_way)


def is_between(place: list[str]) -> bool:
    """Whether the signal came between acquiring and the block, or between the block and its release."""
    names = {*place}
    return place[-2:-1] == ["_granted"] or bool({"__exit__", "release"} & names and "make" not in names)


def use(guard: lock, *, in_block: bool) -> None:
    if in_block:
        with guard:
            pass
    elif guard.acquire():
        try:
            pass
        finally:
            guard.release()


if __name__ == "__main__":
    app.conf.update(exclusive_store=sys.argv[1])
    scenes = {
        scene.__name__: scene for scene in (hold, contend, roam, fork, fork_in_body, call, be_interrupted)
    }
    scenes[sys.argv[2]](*sys.argv[3:])
