"""lock(reentrant=True): who enters a held lock again, with whose lease, and who waits for it all the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, ExclusiveError, LeaseLost, LockHeld, OptionError, install
from celery_exclusive import lock as lock_
from celery_exclusive.core.operations import ForceRelease
from celery_exclusive.run import Run, within
from celery_exclusive.signals import LockOutcome, lock_outcome

pytestmark = pytest.mark.promise(
    "A `lock(reentrant=True)` in a block of its name, in a run that holds its key, or between `acquire()` "
    "and `release()` of such a lock, has the lease of the outer one and releases nothing. Another thread, "
    "task, copied context, fork, store or name waits as for any lock",
    name="reentrant",
    broke="the inner end releases; threads, tasks, pids, stores or keys not told apart; a lost lease again",
)

Lock = Callable[..., lock_]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("reentrant", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://reentrant")
    yield app
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    left = list(store.scan())
    store.clear()
    assert left == []
    app.close()


@pytest.fixture
def lock(app: Celery) -> Lock:
    """Makes a lock of this name, which is tried once."""
    return lambda text="k", **given: lock_(
        text, **{"ttl": 600, "wait": 0, "reentrant": True, "app": app, **given}
    )


def is_refused(guard: lock_) -> bool:
    try:
        with guard:
            return False
    except LockHeld:
        return True


def test_an_inner_block_has_the_lease_of_the_outer_one_which_releases_it(lock: Lock) -> None:
    with lock(reentrant=False, limit=2) as outer:
        for wait in (0, 5, None):
            with lock(limit=2, wait=wait) as inner, lock() as innermost:
                assert inner is innermost is outer
        outer.check()
        with pytest.raises(LockHeld), lock(reentrant=False):
            pass
    assert outer.is_over
    with lock() as later:
        assert later.fence > outer.fence


def test_an_object_within_itself_ends_one_block_after_the_other(lock: Lock) -> None:
    guard: Any = lock()
    with guard as outer:
        with guard as inner:
            assert inner is outer is guard.lease
        assert guard.locked()
    assert not guard.locked()


def test_between_acquire_and_release_other_locks_of_this_thread_enter_again(lock: Lock) -> None:
    guard, inner = lock(), lock()
    assert guard.acquire()
    assert guard.acquire()
    assert inner.acquire()
    inner.release()
    guard.release()
    assert guard.locked()
    guard.release()
    assert not guard.locked()
    with pytest.raises(ExclusiveError, match="does not hold"):
        guard.release()
    assert inner.acquire()  # no longer the lease of the other
    assert inner.lease.fence > 1
    inner.release()
    plain = lock(reentrant=False)
    assert plain.acquire()  # by a thread that may have other jobs
    assert not guard.acquire()
    plain.release()


def test_an_inner_lock_outlives_the_outer_one_without_a_lease(lock: Lock) -> None:
    guard = lock()
    with lock():
        assert guard.acquire()
    with pytest.raises(LeaseLost):
        guard.lease.check()
    guard.release()
    assert not guard.locked()


def test_a_lock_that_is_known_to_be_lost_is_acquired_anew(app: Celery, lock: Lock) -> None:
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    with lock() as lost:
        (holder,) = store.inspect(lost.key).holders
        store.apply(lost.key, ForceRelease(holder.id))
        with lock() as inner:
            assert inner is lost  # nothing has told it
            with pytest.raises(LeaseLost):
                inner.check()
        with lock() as anew:
            assert anew.fence > lost.fence


def test_another_name_store_thread_or_copied_context_waits(lock: Lock) -> None:
    other = install(Celery("other", broker="memory://", set_as_current=False))
    other.conf.update(exclusive_store="memory://another")
    with ThreadPoolExecutor(1) as pool, lock() as outer:
        for guard in (lock("another"), lock(app=other)):
            with guard as lease:
                assert lease is not outer
        assert pool.submit(is_refused, lock()).result(60)
        assert pool.submit(copy_context().run, is_refused, lock()).result(60)
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("by_run", [False, True])
def test_a_forked_child_waits(lock: Lock, by_run: bool) -> None:
    with lock(reentrant=False) as lease, within(Run("id", lease if by_run else None)):
        pid = os.fork()
        if not pid:
            os._exit(0 if is_refused(lock()) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_coroutine_enters_its_own_lock_again_and_other_tasks_do_not(lock: Lock) -> None:
    async def enter() -> bool:
        try:
            async with lock():
                return True
        except LockHeld:
            return False

    async def main() -> None:
        async with lock() as outer:
            async with lock(wait=5) as inner:
                assert inner is outer
            guard = lock()
            assert await guard.aacquire()
            await guard.arelease()
            await outer.acheck()
            assert not any(await asyncio.gather(enter(), enter()))
        assert await enter()

    asyncio.run(main())
    with lock():
        assert not asyncio.run(enter())  # several of its tasks could be in it at once


def test_a_run_that_holds_the_key_enters_it_again_in_its_own_thread(app: Celery, lock: Lock) -> None:
    seen: list[LockOutcome] = []

    @app.task(name="sync", bind=True, shared=False, exclusive=Exclusive(key="k"))
    def sync(self: Any) -> bool:
        with lock() as lease, lock():
            assert lease is self.lease
        self.lease.check()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(copy_context().run, is_refused, lock()).result(60)

        async def enter() -> None:
            async with lock():
                raise AssertionError("another task could be in it")

        with pytest.raises(LockHeld):
            asyncio.run(enter())
        return True

    def receive(outcome: LockOutcome, **_: Any) -> None:
        seen.append(outcome)

    lock_outcome.connect(receive)
    try:
        assert sync.apply(throw=True).get(disable_sync_subtasks=False)
    finally:
        lock_outcome.disconnect(receive)
    of_task = [outcome.kind for outcome in seen if outcome.task_name]
    assert of_task == ["acquired", "released"]
    assert {outcome.kind for outcome in seen if not outcome.task_name} == {"refused"}


def test_a_value_of_reentrant_that_is_no_switch_is_refused(lock: Lock) -> None:
    with pytest.raises(OptionError, match="reentrant=1 must be True or False"):
        lock(reentrant=1)
