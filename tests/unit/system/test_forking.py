"""A child inherits no lock of a thread that is gone in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.utils.functional import noop

from celery_exclusive import Unique, install
from celery_exclusive import services as services_module
from celery_exclusive.core.operations import Applied, Release
from celery_exclusive.leases.releaser import Releaser
from celery_exclusive.publishing import message, unique_publish
from celery_exclusive.stores.base import Reply
from celery_exclusive.system import forks
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.reaper import Reaper
from celery_exclusive.worker.roster import Roster

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

_forks: list[threading.Event] = []


def _tell() -> None:
    for begins in _forks:
        begins.set()


os.register_at_fork(before=_tell)  # the last one to be registered is the first one to be called


class Work:
    """What a thread does: it ends after a fork has begun, unless that has been made meanwhile."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.begins, self.fork_begins, self.fork_is_made = (threading.Event() for _ in range(3))
        self.is_done = False

    def __call__(self, *_: Any, **__: Any) -> Reply:
        self.begins.set()
        self.fork_begins.wait(60)
        self.fork_is_made.wait(self.pause)
        self.is_done = True
        return Reply(Applied(True))

    def was_done_when_a_child_was_forked(self) -> bool:
        assert self.begins.wait(60)
        _forks.append(self.fork_begins)
        child = os.fork()
        if not child:
            os._exit(0)
        was_done = self.is_done
        self.fork_is_made.set()
        _forks.clear()
        assert os.waitpid(child, 0) == (child, 0)
        return was_done


def start_heartbeat(services: Any, work: Work) -> Callable[[], None]:
    heartbeat = Heartbeat(services, "broker", Roster())
    services.store.epoch = work
    heartbeat.period = heartbeat._longest = 0.01
    heartbeat.start()
    return heartbeat.stop


def start_reaper(services: Any, work: Work) -> Callable[[], None]:
    services.store.reap = work
    reaper = Reaper(services, noop)
    reaper.start()
    return reaper.stop


def start_releaser(services: Any, work: Work) -> Callable[[], None]:
    services.store.apply = work
    releaser = Releaser(services)
    releaser.add(("x:key", Release("a/1", "token")))
    return releaser.drain


@pytest.mark.promise(
    "A child is forked when no thread of the main process is at work: it inherits none of its locks",
    name="forks",
    broke="the threads do not say that they work; one takes all the time; a plain lock",
    figure="before, 4 of 100 children that were forked right after a death hung; since, 0 of 140",
)
@pytest.mark.parametrize("start", [start_heartbeat, start_reaper, start_releaser])
def test_a_child_is_forked_when_a_thread_has_done_its_work(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    monkeypatch.setattr(forks, "_LONGEST_WAIT", 60)
    services: Any = install(make_app(exclusive_reap_period=0.01))._celery_exclusive
    work = Work(pause=0.2)
    stop = start(services, work)
    assert work.was_done_when_a_child_was_forked()
    stop()


@pytest.mark.proves("forks")
def test_a_fork_does_not_wait_for_long() -> None:
    work = Work(pause=60)

    def run() -> None:
        with forks.forks_wait():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    assert not work.was_done_when_a_child_was_forked()
    thread.join()
    forks._locks.clear()


@pytest.mark.proves("forks")
def test_one_thread_that_waits_for_long_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_LONGEST_WAIT", 2)
    is_over, inherited = threading.Event(), threading.Lock()

    def wait() -> None:
        with forks.forks_wait():
            is_over.wait(60)

    def work() -> None:
        while not is_over.is_set():
            with forks.forks_wait(), inherited:
                time.sleep(0.02)
            time.sleep(0.001)

    threads = [threading.Thread(target=wait), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    while len(forks._locks) < len(threads):
        time.sleep(0.001)
    child = os.fork()
    if not child:
        os._exit(not inherited.acquire(timeout=1))
    is_over.set()
    assert os.waitpid(child, 0) == (child, 0)
    for thread in threads:
        thread.join()
    forks._locks.clear()


@pytest.mark.proves("forks")
def test_threads_that_fork_at_the_same_time_let_all_others_go_on() -> None:
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            with forks.forks_wait():
                time.sleep(0.002)

    def fork() -> None:
        for _ in range(20):
            forks._wait()
            forks._go_on()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    forkers = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
    for thread in (*workers, *forkers):
        thread.start()
    for thread in forkers:
        thread.join(60)
    is_over.set()
    for thread in workers:
        thread.join(60)
    assert not [thread for thread in (*workers, *forkers) if thread.is_alive()]
    assert not forks._taken
    forks._locks.clear()


@pytest.mark.promise(
    "A child publishes, whatever a thread of its parent was computing for a call when the child was forked",
    broke="red before, on Python 3.10 and 3.11: the origin of a call had one lock for all calls",
)
@pytest.mark.parametrize(
    ("module", "name"),
    [(message, "has_to_be_sent"), (unique_publish, "enclosing_tasks"), (services_module, "open_store")],
    ids=["origin", "facts", "store"],
)
def test_child_publishes_though_it_was_forked_while_a_thread_made_a_call(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    app = install(make_app())

    @app.task(name="load", shared=False, unique=Unique())
    def load(url: str) -> None: ...

    app.finalize()
    compute, is_inside, is_forked = getattr(module, name), threading.Event(), threading.Event()

    def call(url: str) -> None:
        load.apply_async((url,), task_id=url, retries=1)

    def compute_in_thread(*args: Any, **named: Any) -> Any:
        if threading.current_thread() is thread:
            is_inside.set()
            is_forked.wait(60)
        return compute(*args, **named)

    thread = threading.Thread(target=call, args=("a",))
    monkeypatch.setattr(module, name, compute_in_thread)
    thread.start()
    assert is_inside.wait(60)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # the child ends by this signal if it hangs
        try:
            call("b")
        finally:
            os._exit(load.lock_state("b").unique_holder is None)
    is_forked.set()
    assert os.waitpid(child, 0) == (child, 0)
    thread.join()


@pytest.mark.proves("forks")
def test_work_inside_of_work_does_not_wait_for_itself() -> None:
    with forks.forks_wait(), forks.forks_wait():
        pass


def test_greenlets_do_not_wait_for_each_other() -> None:
    pytest.importorskip("gevent")
    code = """
from celery_exclusive.system.forks import forks_wait  # with the locks of threads
from gevent import monkey, spawn, joinall, sleep
monkey.patch_all()
def work():
    with forks_wait():
        sleep(0.01)
joinall([spawn(work), spawn(work)], timeout=30, raise_error=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
