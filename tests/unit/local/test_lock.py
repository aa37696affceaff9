"""lock(): what it refuses, who holds it, and whom it wakes; on a store in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task, current_app, signature

from celery_exclusive import Conflict, Exclusive, ExclusiveError, LeaseLost, LockHeld, OptionError, install
from celery_exclusive import lock as lock_
from celery_exclusive.core.operations import Acquire, ForceRelease, Granted, Parked, Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.local.heartbeat import heartbeat
from celery_exclusive.options.option import apps_with_locks
from celery_exclusive.run import Run, current_run
from celery_exclusive.services import PublishingStore
from celery_exclusive.stores.base import Store
from celery_exclusive.stores.memory import MemoryStore
from tests.leases import is_lost
from tests.worker.journal import eventually

Lock = Callable[..., lock_]
FOREVER = 600 * SECOND
LETTER = (
    b'{"v": 1, "body": "[]", "coding": "text", "content_type": "application/json", "properties": {}, '
    b'"content_encoding": "utf-8", "headers": {"exclusive": {"v": 1, "id": "1", "exclusive": "x=repo:17"}}, '
    b'"exchange": "", "routing_key": "celery"}'
)


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("locks", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://locks")
    yield app
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    assert list(store.scan()) == []
    app.close()


@pytest.fixture
def lock(app: Celery) -> Lock:
    return lambda text="repo:17", **options: lock_(text, app=app, **{"ttl": 5, **options})


@pytest.fixture
def store(app: Celery) -> Iterator[Store]:
    store: MemoryStore = app._celery_exclusive.store  # type: ignore[attr-defined]
    yield store
    store.clear()


def thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


# What it is ---------------------------------------------------------------------------------------------


def test_a_lock_is_held_from_the_beginning_of_the_block_to_its_end(lock: Lock) -> None:
    with lock() as lease:
        assert lock().locked()
        assert not lock(wait=0).acquire()
        lease.check()
    assert not lock().locked()
    with pytest.raises(LeaseLost):
        lease.check()
    with lock() as later:
        assert later.fence > lease.fence


def test_the_same_text_as_a_tasks_key_is_the_same_lock(app: Celery, lock: Lock) -> None:
    @app.task(name="sync", shared=False, exclusive=Exclusive(key="repo:{number}"))
    def sync(number: int) -> None: ...

    long = "repo:" + "1" * 500
    for text in ("repo:17", long):
        with lock(text):
            (holder,) = sync.lock_state(text.partition(":")[2]).holders
            assert holder.task_id.startswith("lock:")
    assert not sync.lock_state(17).is_running


@pytest.mark.promise(
    "The text of a `lock()` is no template: a name in braces stays, with a warning at the caller's line",
    name="braces in a lock",
    broke="warned at our line; warned of any braces",
)
@pytest.mark.parametrize("text", ["repo:{number}", "repo:{project.pk}/x"])
def test_a_name_in_braces_is_taken_as_it_is_with_a_warning_at_the_callers_line(text: str) -> None:
    with pytest.warns(UserWarning, match=r"write an f-string, lock\(f'repo:{project_id}'\)") as warned:
        guard = lock_(text)
    assert guard.key == f"x={text}"
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.promise(
    "A `lock()` with the name of a task that it does not hold off is warned of once, with the `key=` that "
    "would make them one lock",
    broke="red before; a task with that key warned of",
)
@pytest.mark.parametrize(
    ("option", "warnings"),
    [
        (lambda _: None, 1),
        (lambda _: Exclusive(), 1),
        (lambda _: Exclusive(key="feeds.nightly:{url}"), 1),
        (lambda name: Exclusive(key=name), 0),
        (lambda name: Exclusive(key=lambda url: name), 0),
    ],
    ids=["no option", "whole task", "another key", "its name", "a function"],
)
def test_a_lock_with_the_name_of_a_task_that_has_another_key_is_warned_of_once(
    app: Celery, lock: Lock, caplog: pytest.LogCaptureFixture, option: Any, warnings: int
) -> None:
    name = f"feeds.nightly {uuid4()}"

    @app.task(name=name, shared=False, exclusive=option(name))
    def nightly(url: str = "") -> None: ...

    app.finalize()
    for _ in range(2):
        with lock(name):
            pass
    with lock("feeds"):
        pass
    assert caplog.text.count("not the lock of the task of this name") == warnings
    assert caplog.text.count(f"the task has exclusive=Exclusive(key='{name}')") == warnings


@pytest.mark.proves("braces in a lock")
@pytest.mark.parametrize("text", ['{"repo": 17}', "{}", "{17}", "{a b}", "repo:{", "{user:17}"])
def test_other_braces_are_taken_as_they_are(text: str) -> None:
    assert lock_(text).key == f"x={text}"


def test_acquire_and_release_do_what_the_block_does(lock: Lock) -> None:
    guard, other = lock(), lock(wait=0)
    assert guard.acquire()
    guard.lease.check()
    assert not other.acquire()
    guard.release()
    assert other.acquire()
    other.release()


def test_a_limit_lets_so_many_hold_it_at_once(lock: Lock) -> None:
    with lock(limit=2), lock(limit=2):
        assert lock(limit=2).locked()
        with pytest.raises(LockHeld, match="and 1 more"), lock(limit=2, wait=0):
            pass
    with lock(limit=2):
        assert not lock(limit=2).locked()


def test_lock_held_names_the_holder_and_since_when(lock: Lock) -> None:
    with lock() as lease, pytest.raises(LockHeld) as raised, lock(wait=0):
        pass
    error = raised.value
    assert error.key == lease.key == "x=repo:17"
    assert error.holder.startswith("lock:")
    assert f"x=repo:17 is held by {error.holder} for 0." in str(error)
    assert "wait=0 s" in str(error)


@pytest.mark.parametrize("kind", [Conflict, LockHeld])
def test_a_conflict_says_the_same_in_another_process(kind: type[Conflict]) -> None:
    error = pickle.loads(pickle.dumps(kind("lock k is held", "k", "a")))
    assert type(error) is kind
    assert (str(error), error.key, error.holder) == ("lock k is held", "k", "a")
    again = kind(*error.args)  # what a result backend does
    assert (str(again), again.key, again.holder) == ("lock k is held", "k", "a")


# Waiting ------------------------------------------------------------------------------------------------


def test_a_waiting_block_acquires_the_lock_as_soon_as_it_is_free(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    guard, later = lock(), lock()
    guard.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(later.acquire)
        eventually(lambda: "waits for lock x=repo:17 held by" in caplog.text, "somebody to wait")
        assert not waiter.done()
        guard.release()
        assert waiter.result(60)
    later.release()
    assert caplog.text.count("waits for lock") == 1


@pytest.mark.promise(
    "A `lock()` does not pass an open offer; in an event loop the plain form is refused and names the "
    "async one",
    name="lock and offers",
    broke="event-loop check gone",
)
def test_a_lock_does_not_pass_a_task_to_which_the_place_is_offered(lock: Lock, store: Store) -> None:
    with lock():
        parked = store.apply("x=repo:17", Acquire("task/1", "token", FOREVER, message=b"{}"))
        assert isinstance(parked.answer, Parked)
    with pytest.raises(LockHeld, match="offered to task,") as raised, lock(wait=0):
        pass
    assert raised.value.holder == "task"


# Who holds it -------------------------------------------------------------------------------------------


@pytest.mark.proves("lock that was thrown away")
def test_a_lock_that_this_code_holds_already_is_refused_instead_of_waited_for(lock: Lock) -> None:
    with lock() as guard, pytest.raises(ExclusiveError, match="by the very code that waits for it"):
        lock().acquire()
    assert guard
    same = lock()
    with same, pytest.raises(ExclusiveError, match="by the very code that waits for it"):
        same.acquire()
    with same, pytest.raises(ExclusiveError, match=r"reentrant=True\) for code"):
        lock(wait=1e6).acquire()
    with same, pytest.raises(LockHeld), lock(wait=0):  # who does not wait is told that it is held
        pass


def test_a_lock_of_a_block_around_an_event_loop_is_refused_in_it_instead_of_waited_for(lock: Lock) -> None:
    async def inner() -> None:
        async with lock():
            raise AssertionError("two at once")

    async def limited() -> None:
        await asyncio.wait_for(inner(), 30)

    with lock(), pytest.raises(ExclusiveError, match="by the very code that waits for it"):
        asyncio.run(limited())


def test_a_lock_that_the_run_around_it_holds_is_refused_instead_of_waited_for(
    lock: Lock, app: Celery
) -> None:
    @app.task(name="sync", bind=True, shared=False, exclusive=Exclusive(key="repo:17"))
    def sync(self: Any) -> None:
        with lock():
            raise AssertionError("two at once")

    with pytest.raises(ExclusiveError, match="by the very code that waits for it"):
        sync.apply(throw=True)


def test_a_holder_of_a_place_waits_for_another_place_of_a_full_limit(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    other = lock(limit=2)
    thread(other.acquire)

    def release() -> None:
        eventually(lambda: "waits for lock x=repo:17" in caplog.text, "somebody to wait")
        other.release()

    with lock(limit=2), ThreadPoolExecutor(1) as pool:
        pool.submit(release)
        with lock(limit=2):
            pass


def test_threads_may_share_one_object(lock: Lock) -> None:
    shared, inside, most = lock(), [], []

    def work() -> None:
        for _ in range(10):
            with shared:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert most == [1] * 40


def test_a_lock_may_be_released_by_another_thread(lock: Lock) -> None:
    guard = lock()
    assert thread(guard.acquire)
    guard.release()
    assert not guard.locked()


def test_the_heartbeat_has_a_thread_only_while_something_is_held(lock: Lock) -> None:
    with lock(ttl=0.5):  # wakes a thread that rests for the lease of an earlier test
        assert heartbeat.is_beating
        with lock("another", ttl=0.3):
            pass
    eventually(lambda: not heartbeat.is_beating, "the heartbeat to end")


def test_of_two_locks_each_is_renewed_in_its_own_time(lock: Lock) -> None:
    with lock("long", ttl=60):
        assert not thread(lock("long", wait=0.3).acquire)  # the heartbeat has begun to rest
        with lock(ttl=1.5) as lease:
            assert not thread(lock(wait=2.5).acquire)
            lease.check()


@pytest.mark.proves("loss of data")
def test_a_lock_is_restored_into_a_store_that_has_lost_its_data(
    lock: Lock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = threading.Lock()

    def no_beat_meanwhile(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any) -> Any:
            with beats:
                return call(*args)

        return wait

    with lock(ttl=3) as lease, lock("repo:18", ttl=3) as other:
        eventually(lambda: heartbeat.known(store), "a heartbeat that knows the store")
        for name in ("renew", "epoch"):
            monkeypatch.setattr(store, name, no_beat_meanwhile(getattr(store, name)))
        with beats:
            store.clear()
            taken = lock("repo:18", wait=0)
            assert taken.acquire()
        eventually(lambda: lock().locked(), "the lock that nobody has taken")
        lease.check()
        assert not lock(wait=0).acquire()
        eventually(lambda: is_lost(other), "the end of the lease that somebody else has")
        taken.release()
    assert not lock().locked()


@pytest.mark.promise(
    "A `lock()` that was thrown away ends by its ttl; one that would wait for itself is refused",
    name="lock that was thrown away",
    broke="owners kept alive; waits for itself",
)
def test_a_lock_that_was_thrown_away_is_not_renewed(lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    assert lock(ttl=0.3).acquire()
    gc.collect()
    with lock(wait=30):
        pass
    eventually(lambda: "deleted without release(): its lease on lock x=repo:17" in caplog.text, "a warning")


def test_a_lock_that_was_lost_is_reported_and_not_taken_from_the_next(
    lock: Lock, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with lock() as lease:
        store.apply("x=repo:17", ForceRelease(lease._claim.id))
        next_holder = store.apply("x=repo:17", Acquire("next/1", "token", FOREVER))
        assert isinstance(next_holder.answer, Granted)
        with pytest.raises(LeaseLost):
            lease.check()
    assert "lost its lease on lock x=repo:17 before it released it" in caplog.text
    assert lock().locked()
    store.apply("x=repo:17", Release("next/1", "token"))


class Interruption(BaseException): ...


def test_an_exception_that_ends_the_block_or_the_waiting_leaves_nothing_locked(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise Interruption

    with pytest.raises(Interruption), lock():
        interrupt()
    assert not lock().locked()
    guard, apply = lock(), PublishingStore.apply

    def apply_and_interrupt(*args: Any) -> None:  # granted, but not told yet
        apply(*args)
        interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(PublishingStore, "apply", apply_and_interrupt)
        for take in (guard.acquire, guard.__enter__):
            with pytest.raises(Interruption):
                take()
    # The interruption came again while the lock was given back, and still:
    assert not guard.locked()
    assert guard.acquire()
    guard.release()


# Misuse -------------------------------------------------------------------------------------------------


@pytest.mark.proves("bounds of times and counts")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"text": ""}, "cannot be an empty string"),
        ({"text": 17}, r"lock\(17\): the first argument must be a string"),
        ({"ttl": 0}, r"ttl=0 must be a number of seconds from 0\.1"),
        ({"ttl": None}, "ttl=None"),
        (
            {"ttl": sys.maxsize},
            r"ttl=9223372036854775807 must be a number of seconds from 0\.1 to 157766400, or a timedelta\.",
        ),
        ({"ttl": 10**5000}, "ttl=<int of many digits> must be"),
        (
            {"wait": -1},
            "wait=-1 must be a number of seconds from 0 to 157766400, or a timedelta, 0 for one try, or None",
        ),
        (
            {"wait": 1e300},
            r"wait=1e\+300 must be a number of seconds from 0 to 157766400, or a timedelta, 0 for one try",
        ),
        ({"wait": False}, "wait=False"),
        ({"limit": 0}, "limit=0 must be a whole number from 1"),
        (
            {"limit": 10**9 + 1},
            "limit=1000000001 must be a whole number from 1 to 1000000000, or None: how many",
        ),
        ({"limit": True}, "limit=True"),
        ({"part": ""}, "part='' must be a string, as per= of the tasks makes it: 'acme'"),
        ({"part": 17}, "part=17 must be a string"),
        ({"per": "acme"}, "per= is part= here, the text of one part"),
        ({"tll": 5}, "there is no option 'tll' .*did you mean 'ttl'"),
        (
            {"timeout": 5},
            "timeout= is ttl= for the lock of a dead process, .* and wait= for the longest wait",
        ),
        ({"blocking": False}, "blocking= is wait= here: 0 for one try"),
        ({"expire": 5}, "expire= is ttl= here"),
        ({"blocking_timeout": 5}, "blocking_timeout= is wait= here"),
        (
            {"text": Task()},
            r"must be a string .* Write lock\('nightly'\) for the lock of tasks with",
        ),
        ({"text": signature("feeds.refresh")}, r"Write lock\('nightly'\) for the lock of tasks with"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], problem: str) -> None:
    options = {"text": "repo:17", **arguments}
    with pytest.raises(OptionError, match=problem):
        lock_(options.pop("text"), **options)


@pytest.mark.proves("timedelta")
def test_the_times_of_a_lock_may_be_timedeltas(lock: Lock) -> None:
    guard = lock(ttl=timedelta(seconds=6), wait=timedelta(0))
    with guard as lease:
        assert lease.ttl == 6
        with pytest.raises(LockHeld, match=r"within wait=0\.0 s"):
            thread(lock(wait=timedelta(0)).__enter__)


def test_arguments_of_acquire_are_refused_with_the_option_of_the_lock(lock: Lock) -> None:
    acquire: Any = lock().acquire
    for arguments, options in [((), {"blocking": False}), ((False,), {}), ((), {"timeout": 3})]:
        with pytest.raises(
            OptionError, match=r"acquire\(\) takes no arguments, .* lock\('repo:17', wait=0\)"
        ):
            acquire(*arguments, **options)


@pytest.mark.proves("missing lease")
def test_a_lock_that_is_not_held_is_not_released(lock: Lock) -> None:
    guard = lock()
    with pytest.raises(
        ExclusiveError, match=r"lock\('repo:17'\)\.release\(\): this object does not hold the lock"
    ):
        guard.release()
    with pytest.raises(ExclusiveError, match="does not hold the lock"):
        guard.lease  # noqa: B018
    assert getattr(guard, "lease", None) is None
    with guard:
        guard.release()  # the end of the block has nothing left to do


@pytest.mark.proves("lock and offers")
def test_an_event_loop_is_not_blocked_but_pointed_to_the_async_form(lock: Lock) -> None:
    guard = lock()

    async def enter() -> None:
        with guard:
            raise AssertionError("held")

    async def call(method: Callable[[], object]) -> None:
        method()

    for wrong, hint in (
        (enter, r"acquire\(\) would block the event loop .*: write `async with lock\('repo:17'\): \.\.\.`"),
        (partial(call, guard.acquire), r"or `await lock\('repo:17'\)\.aacquire\(\)`"),
        (partial(call, guard.locked), r"locked\(\) would .*: write `await lock\('repo:17'\)\.alocked\(\)`"),
        (partial(call, guard.release), r"write `await lock\('repo:17'\)\.arelease\(\)`"),
    ):
        with pytest.raises(ExclusiveError, match=hint):
            asyncio.run(wrong())


def test_the_app_is_the_one_with_locks_or_the_current_one_or_has_to_be_named(lock: Lock) -> None:
    others, current = dict(apps_with_locks), current_app._get_current_object()
    bare = Celery("bare")  # is current now
    with pytest.raises(OptionError, match=r"the app <Celery bare.* has no locks: call .*install\(app\)"):
        lock_("repo:17", app=bare).acquire()
    try:
        apps_with_locks.clear()
        with pytest.raises(OptionError, match=r"the app <Celery bare.* has no locks"):
            lock_("repo:17").acquire()
        first, second = (install(Celery(name, set_as_current=False)) for name in ("first", "second"))
        del apps_with_locks[second]
        first.conf.update(exclusive_store="memory://locks", broker_url="memory://")
        with lock_("repo:17"):
            assert lock().locked()
        apps_with_locks.update(others)
        with pytest.raises(
            OptionError, match=r"the current app has no locks: choose one .* with app= \(.*<Celery first"
        ):
            lock_("repo:17").acquire()
        first.set_current()
        with lock_("repo:17"):
            assert lock().locked()
    finally:
        current.set_current()
        apps_with_locks.clear()
        apps_with_locks.update(others)


def test_a_run_is_not_taken_for_the_holder_of_another_key(lock: Lock) -> None:
    with lock("other") as lease:
        mark = current_run.set(Run("id", lease))
        try:
            with lock():
                pass
        finally:
            current_run.reset(mark)


@pytest.mark.promise(
    "The end of a block releases only what that block acquired: in a copied context, in a bare fork",
    name="end of a block",
    broke="whatever this object holds is released; threads not told apart; pid not looked at",
)
def test_the_end_of_a_block_does_not_release_what_another_thread_has_acquired_since(lock: Lock) -> None:
    guard, other = lock(), lock(wait=0)
    taken, done = threading.Event(), threading.Event()

    def take_and_keep() -> None:
        with guard as lease:
            taken.set()
            assert done.wait(60)
            lease.check()

    with ThreadPoolExecutor(1) as pool:
        with guard:
            guard.release()
            later = pool.submit(take_and_keep)
            assert taken.wait(60)
        assert not other.acquire()
        done.set()
        later.result(60)


def hold_for_a_moment(guard: lock_) -> bool:
    with guard:
        return True


@pytest.mark.proves("end of a block")
def test_a_job_in_a_copied_context_waits_for_the_thread_that_made_the_copy(lock: Lock) -> None:
    with ThreadPoolExecutor(1) as pool:
        with lock():
            job = pool.submit(copy_context().run, hold_for_a_moment, lock())
            with pytest.raises(FutureTimeout):
                job.result(0.2)
        assert job.result(60)


def test_a_wrong_setting_is_an_error_and_no_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    app = install(Celery("wrong", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://wrong", exclusive_tll=3)
    with pytest.raises(OptionError, match="exclusive_tll"), lock_("a", app=app):
        pass
    assert not caplog.records
    app.close()


@pytest.mark.promise(
    "A silent broker holds up no caller of `lock()`; rows end without a worker",
    name="lock and silent broker",
    broke="waits for the publishing; no sweep",
)
def test_a_broker_that_does_not_answer_does_not_delay_a_release(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        app = install(Celery("deaf", set_as_current=False))
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        app.conf.update(exclusive_store="memory://locks", broker_url=url)
        finished = threading.Event()

        def hold() -> None:
            with lock_("repo:17", app=app):
                store.apply("x=repo:17", Acquire("b/1", "b", FOREVER, message=LETTER))
            finished.set()

        threading.Thread(target=hold, daemon=True).start()
        assert finished.wait(60)
        (offered,) = store.apply("x=repo:17", Acquire("c/1", "c", FOREVER)).answer.by  # type: ignore[union-attr]
        assert offered.id == "b/1"
        app.close()


@pytest.mark.proves("lock and silent broker")
def test_a_block_clears_what_releases_leave_where_no_worker_runs(
    app: Celery, lock: Lock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app.conf.exclusive_store = f"sqlite:///{tmp_path}/locks.db"
    monkeypatch.setattr("celery_exclusive.local.acquisition._SWEEPS", 1)
    monkeypatch.setattr("celery_exclusive.local.acquisition._MINUTE", 0)
    for number in range(20):
        with lock(f"repo:{number}"):
            pass
    app._celery_exclusive.store.close()  # type: ignore[attr-defined]
    with sqlite3.connect(tmp_path / "locks.db") as database:
        assert database.execute("select count(*) from exclusive2_lock").fetchone() == (0,)
    database.close()


@pytest.mark.proves("end of a block")
def test_the_heartbeat_of_a_parent_is_not_taken_for_ones_own(lock: Lock) -> None:
    heartbeat._pid, heartbeat._period = 1, 10.0  # as a child finds it that was forked behind Python's back
    with lock():
        assert heartbeat._pid == os.getpid()
        assert heartbeat._period == pytest.approx(5 / 3)
        eventually(lambda: [t for t in sys._current_frames() if t not in threads_of_python()], "its thread")
    eventually(lambda: not heartbeat.is_beating, "the end of the beating")


def threads_of_python() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate()}


@pytest.mark.promise(
    "A caller with another broker than the workers wakes no task into it",
    broke="published into the wrong one",
)
def test_a_caller_with_another_broker_than_the_workers_publishes_no_waiting_message(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = install(Celery("elsewhere", broker=redis_url, set_as_current=False))
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    assert store.keep_namespace("redis://mq.example:6379/0", FOREVER) == "redis://mq.example:6379/0"
    with lock_("repo:17", app=app):
        store.apply("x=repo:17", Acquire("b/1", "b", FOREVER, message=LETTER))
    (record,) = [record for record in caplog.records if "not republished" in record.getMessage()]
    assert "mq.example" in record.getMessage()
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.llen("celery") == 0
    store.close()
    app.close()
