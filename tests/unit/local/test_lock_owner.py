"""lock(): what it holds belongs to its object, whatever thread or context acquires and releases it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import ExclusiveError, install
from celery_exclusive import lock as lock_
from tests.worker.journal import eventually

pytestmark = pytest.mark.promise(
    "A lease of `lock()` belongs to its object: a block that ends in another thread or context, or in an "
    "event loop, releases it. Jobs on one pool thread are different owners. A copied context, or an inner "
    "block of the same object, releases its own lease",
    broke="red before, all of them; the latest acquisition taken for the one of this code",
)

Lock = Callable[..., lock_]


@pytest.fixture
def lock() -> Iterator[Lock]:
    app = install(Celery("owners", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://owners")
    yield lambda text="k", **options: lock_(text, app=app, **{"ttl": 600, **options})
    store = app._celery_exclusive.store
    left = list(store.scan())
    store.clear()
    assert left == []
    app.close()


def in_threads(guard: lock_) -> None:
    """As `asyncio.to_thread` does for each half of a dependency: a copy of the context for each call."""

    async def block() -> None:
        await asyncio.to_thread(guard.__enter__)
        await asyncio.to_thread(guard.__exit__, None, None, None)

    asyncio.run(block())


def in_contexts(guard: lock_) -> None:
    stack = ExitStack()
    copy_context().run(stack.enter_context, guard)
    copy_context().run(stack.close)


def in_a_generator(guard: lock_) -> None:
    """As a response that is streamed: each step in another thread."""

    def stream() -> Iterator[int]:
        with guard:
            yield 1
            yield 2

    steps = stream()
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(next, steps, None).result(60)


def in_the_loop(guard: lock_) -> None:
    async def block() -> None:
        stack = ExitStack()
        await asyncio.to_thread(stack.enter_context, guard)
        stack.close()

    asyncio.run(block())


@pytest.mark.parametrize("ends", [in_threads, in_contexts, in_a_generator, in_the_loop])
def test_a_block_that_ends_in_another_thread_or_context_releases_its_lock(
    ends: Callable[[lock_], None], lock: Lock
) -> None:
    guard = lock()
    for _ in range(2):
        ends(guard)
        assert not lock().locked()


def test_jobs_on_one_pool_thread_are_different_owners(lock: Lock) -> None:
    shared = lock(wait=0)

    def use() -> bool:
        is_acquired = shared.acquire()
        if is_acquired:
            shared.release()
        return is_acquired

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(shared.acquire).result(60)
        assert not pool.submit(use).result(60)  # held by the job before, and no error
        shared.release()
        assert pool.submit(use).result(60)


def test_a_job_in_a_copied_context_does_not_release_the_block_around_it(lock: Lock) -> None:
    shared = lock(limit=2)

    def job() -> None:
        with shared:
            pass

    with ThreadPoolExecutor(1) as pool, shared as outer:
        pool.submit(copy_context().run, job).result(60)
        outer.check()


def test_the_inner_one_of_two_blocks_of_one_object_ends_first(lock: Lock) -> None:
    shared = lock(limit=2)
    with shared as outer:
        with shared as inner:
            assert shared.lease is inner
        outer.check()
        assert shared.lease is outer


def test_each_block_of_a_shared_object_is_released_once_though_they_end_elsewhere(lock: Lock) -> None:
    shared = lock(limit=20)
    with ThreadPoolExecutor(20) as pool:
        for half in (shared.__enter__, partial(shared.__exit__, None, None, None)):
            for job in [pool.submit(copy_context().run, half) for _ in range(20)]:
                job.result(60)
    assert not lock(limit=1).locked()


def test_a_block_within_itself_is_refused_and_a_later_one_is_not(lock: Lock) -> None:
    guard: Any = lock()
    with guard, pytest.raises(ExclusiveError, match="by the very code that waits for it"), guard:
        pass
    with guard:
        pass


@pytest.mark.promise(
    "A thread that waits, without `wait=`, for a lock that it has acquired itself by `acquire()` is "
    "warned, since it may be another job",
    name="lock that may wait for itself",
    broke="no warning; threads not told apart",
)
def test_code_that_may_wait_for_itself_is_warned_and_goes_on_if_another_thread_releases(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = lock()

    def release() -> None:
        eventually(lambda: "it waits for ever: give both reentrant=True" in caplog.text, "the warning")
        guard.release()

    assert guard.acquire()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(release)
        assert guard.acquire()
        job.result(60)
    guard.release()


@pytest.mark.proves("lock that may wait for itself")
def test_a_thread_that_waits_for_another_one_is_not_warned(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    guard = lock()
    assert guard.acquire()
    with ThreadPoolExecutor(1) as pool:
        other = lock()
        job = pool.submit(other.acquire)
        eventually(lambda: "waits for lock x=k" in caplog.text, "the other one to wait")
        guard.release()
        assert job.result(60)
        other.release()
    assert "waits for ever" not in caplog.text
