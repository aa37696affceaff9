"""lock() in coroutines, on every store: it never blocks their loop, and leaves nothing held."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import ExclusiveError, LeaseLost, LockHeld, OptionError, install
from celery_exclusive import lock as lock_
from tests.proxy import Proxy
from tests.servers import RedisServer

Lock = Callable[..., lock_]
ROOT = Path(__file__).parents[2]
STORES = ["memory", "redis", "redis_cluster", "memcached", "sqlite", "postgres", "maria"]


class Watched:
    """A store that notes the threads of its calls."""

    def __init__(self, store: Any) -> None:
        self.store, self.threads = store, list[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.threads.append(threading.current_thread().name)
            return found(*args, **kwargs)

        return call if callable(found) else found


@pytest.fixture
def make_lock() -> Iterator[Callable[[str], Lock]]:
    """Makes a `lock` on the store of this URL; its `store` is watched."""
    stores: list[Any] = []

    def make(url: str) -> Lock:
        app: Any = install(Celery("coroutines", broker="memory://", set_as_current=False))
        app.conf.update(exclusive_store=url, exclusive_prefix=token_hex(4))  # one cluster serves all tests
        services = app._celery_exclusive
        services.store = Watched(services.store)
        stores.append(services.store)
        return lambda text="k", **options: lock_(text, app=app, **{"ttl": 600, **options})

    yield make
    for store in stores:
        store.close()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.sqlite"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def lock(make_lock: Callable[[str], Lock], url: str) -> Lock:
    return make_lock(url)


@pytest.fixture
def lock_here(make_lock: Callable[[str], Lock], tmp_path: Path) -> Lock:
    """A `lock` where one store is as good as another."""
    return make_lock(f"sqlite:///{tmp_path}/locks.sqlite")


def store_of(lock: Lock) -> Watched:
    watched: Watched = lock().app._celery_exclusive.store
    return watched


def is_free(lock: Lock, *, within: float = 30) -> bool:
    """Whether it is free long before a lease would expire."""
    guard = lock(wait=within)
    is_acquired = guard.acquire()
    if is_acquired:
        guard.release()
    return is_acquired


@pytest.mark.promise(
    "`async with lock(...)` and its methods, on each store: one holder at a time; the store is never asked "
    "in the thread of the loop",
    broke="red before: refused; asked in the loop",
)
def test_coroutines_hold_it_one_at_a_time_and_never_ask_the_store_in_their_loop(lock: Lock) -> None:
    inside, most = [], []

    async def work() -> None:
        for _ in range(3):
            async with lock(wait=60) as lease:
                inside.append(1)
                most.append(len(inside))
                await lease.acheck()
                inside.pop()

    async def main() -> None:
        guard = lock(wait=0)
        assert await guard.aacquire()
        assert await guard.alocked()
        assert not await lock(wait=0).aacquire()
        with pytest.raises(LockHeld, match=r"wait=0\.1 s"):
            async with lock(wait=0.1):
                raise AssertionError("two at once")
        await guard.arelease()
        assert not await guard.alocked()
        await asyncio.gather(*(work() for _ in range(5)))

    asyncio.run(main())
    assert most == [1] * 15
    threads = set(store_of(lock).threads)
    assert threads
    assert threading.current_thread().name not in threads
    assert is_free(lock)


@pytest.mark.promise(
    "A coroutine that is cancelled at any moment leaves nothing held: what is granted afterwards is "
    "released, and a release is done, also if it had no thread yet, or its loop is closed",
    name="cancelled coroutine",
    broke="nothing cleaned up",
    figure="40 on each store",
)
def test_a_coroutine_that_is_cancelled_at_any_moment_leaves_nothing_held(lock: Lock) -> None:
    async def hold() -> None:
        async with lock(wait=60) as lease:
            await lease.acheck()

    async def main() -> None:
        for _ in range(40):
            task = asyncio.create_task(hold())
            for _ in range(random.randrange(12)):
                await asyncio.sleep(random.choice((0, 0.0003)))
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert is_free(lock)


@pytest.mark.proves("cancelled coroutine")
def test_a_lock_that_is_granted_after_the_cancellation_is_released(
    start_redis: Callable[..., RedisServer], make_lock: Callable[[str], Lock]
) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        lock = make_lock(f"redis://127.0.0.1:{proxy.port}/0")
        assert is_free(lock)  # its scripts are loaded
        assert asyncio.run(cancel_while_it_acquires(lock, proxy))
        assert is_free(lock)
        assert asyncio.run(cancel_while_it_releases(lock, proxy))
        assert is_free(lock)


async def cancel_while_it_acquires(lock: Lock, proxy: Proxy) -> bool:
    """Cancel it while the answer of the store is under way; return whether that ended it at once."""
    proxy.withhold(b"acquire")
    task = asyncio.create_task(lock().aacquire())
    while not proxy.met:
        await asyncio.sleep(0.001)
    return await is_cancelled_before(task, proxy)


async def cancel_while_it_releases(lock: Lock, proxy: Proxy) -> bool:
    guard = lock()
    assert await guard.aacquire()
    proxy.met.clear()
    proxy.withhold(b"release")
    task = asyncio.create_task(guard.arelease())
    while not proxy.met:
        await asyncio.sleep(0.001)
    return await is_cancelled_before(task, proxy)


async def is_cancelled_before(task: asyncio.Task[Any], proxy: Proxy) -> bool:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    is_cancelled = task.cancelled()
    proxy.deliver()
    proxy.restore()
    return is_cancelled


@pytest.mark.proves("cancelled coroutine")
def test_a_release_that_is_cancelled_before_it_has_a_thread_is_done(lock_here: Lock) -> None:
    gate = threading.Event()

    async def main() -> None:
        guard = lock_here()
        assert await guard.aacquire()
        loop = asyncio.get_running_loop()
        store = store_of(lock_here)
        inspect = store.store.inspect
        store.inspect = lambda key: gate.wait(60) and inspect(key)
        waiting = [asyncio.create_task(lock_here().alocked()) for _ in range(20)]  # they have all threads
        await asyncio.sleep(0)
        task = asyncio.create_task(guard.arelease())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loop.call_soon(gate.set)
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert is_free(lock_here)


@pytest.mark.promise(
    "A hundred waiting coroutines use 8 threads at most, and others go on; the lease is renewed while the "
    "loop is blocked",
    name="waiting coroutines",
    broke="waits in its thread; no heartbeat",
)
def test_a_hundred_waiting_coroutines_hold_no_thread_each(lock_here: Lock) -> None:
    async def wait() -> int:
        async with lock_here(wait=500):
            return sum(thread.name.startswith("celery-exclusive") for thread in threading.enumerate())

    async def main() -> None:
        async with lock_here():
            waiting = [asyncio.create_task(wait()) for _ in range(100)]
            for number in range(20):  # others go on
                async with lock_here(f"other {number}"):
                    pass
            assert not any(task.done() for task in waiting)
            for task in waiting[10:]:
                task.cancel()
        assert max(await asyncio.gather(*waiting[:10])) <= 8

    asyncio.run(main())
    assert is_free(lock_here)


@pytest.mark.promise(
    "A coroutine whose task waits for itself is refused, a child task of it waits; `until_commit=True` and "
    "a release without a lease are refused",
    name="misuse in coroutines",
    broke="tasks not told apart; not refused",
)
def test_one_of_two_tasks_that_wait_for_each_other_gives_up_and_one_that_waits_for_itself_is_refused(
    lock_here: Lock,
) -> None:
    async def hold(first: str, second: str, mine: asyncio.Event, other: asyncio.Event) -> str:
        async with lock_here(first):
            mine.set()
            await other.wait()
            try:
                async with lock_here(second, wait=0.2):
                    return "held both"
            except LockHeld:
                return "gave up"

    async def child() -> str:
        async with lock_here():
            return "after its parent"

    async def main() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        assert "gave up" in await asyncio.gather(hold("a", "b", one, two), hold("b", "a", two, one))
        async with lock_here():
            with pytest.raises(ExclusiveError, match="by the very code that waits for it"):
                await lock_here().aacquire()
            task = asyncio.create_task(child())  # in a copy of this context
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), 0.2)
        assert await task == "after its parent"

    asyncio.run(main())


@pytest.mark.proves("waiting coroutines")
def test_a_lock_is_renewed_while_its_loop_is_blocked(lock_here: Lock) -> None:
    async def main() -> None:
        async with lock_here(ttl=1) as lease:
            blocker = threading.Thread(target=lambda: held.append(lock_here(wait=3).acquire()))
            blocker.start()
            blocker.join(60)
            await lease.acheck()
        with pytest.raises(LeaseLost):
            await lease.acheck()

    held: list[bool] = []
    asyncio.run(main())
    assert held == [False]


@pytest.mark.proves("cancelled coroutine")
def test_a_loop_that_is_closed_leaves_nothing_held(lock_here: Lock) -> None:
    async def hold(has_it: asyncio.Event) -> None:
        async with lock_here():
            has_it.set()
            await asyncio.Event().wait()

    async def begin() -> None:
        has_it = asyncio.Event()
        tasks.append(asyncio.create_task(hold(has_it)))
        await has_it.wait()

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(begin())  # cancels what is left
    assert is_free(lock_here)


@pytest.mark.proves("misuse in coroutines")
def test_until_commit_is_refused_in_a_coroutine_and_points_to_a_thread(lock_here: Lock) -> None:
    with pytest.raises(OptionError, match=r"belongs to a thread: put .* `await sync_to_async"):
        asyncio.run(lock_here(until_commit=True).aacquire())


@pytest.mark.proves("misuse in coroutines")
def test_a_coroutine_that_holds_nothing_releases_nothing(lock_here: Lock) -> None:
    with pytest.raises(
        ExclusiveError, match=r"lock\('k'\)\.arelease\(\): this object does not hold the lock"
    ):
        asyncio.run(lock_here().arelease())


SCRIPT = """
import asyncio, atexit, os, sys, threading
from celery import Celery
from celery_exclusive import LockHeld, install, lock
app = install(Celery("process", broker="memory://"))
app.conf.update(exclusive_store=sys.argv[1])

async def main():
    async with lock("k", ttl=60, wait=30) as lease:
        await lease.acheck()
        try:
            async with lock("k", wait=0):
                print("two at once")
        except LockHeld:
            print("held")
"""
FORK = """
asyncio.run(main())
child = os.fork()
asyncio.run(main())
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
ATEXIT = """
atexit.register(lambda: asyncio.run(main()))
"""
PLAIN_ATEXIT = """
def hold():
    with lock("k", ttl=60) as lease:
        lease.check()
        print("held")

atexit.register(hold)
"""
GEVENT = """
import gevent
beats = []
def beat():
    while True:
        beats.append(1)
        gevent.sleep(0.001)
gevent.spawn(beat)
asyncio.run(main())
assert beats
"""


@pytest.mark.promise(
    "`lock()` and its async form work in a forked child, while the interpreter exits, also if Redis was "
    "not used before, and beside gevent",
    broke="red before: RuntimeError of redis-py at exit; the executor of the parent",
)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (FORK, ["held", "held", "held", "0"]),
        (ATEXIT, ["held"]),
        ("asyncio.run(main())" + ATEXIT, ["held", "held"]),
        (PLAIN_ATEXIT, ["held"]),
        (GEVENT, ["held"]),
    ],
    ids=["fork", "exit", "exit after use", "exit of plain code", "gevent"],
)
@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_a_lock_works_after_a_fork_while_the_interpreter_exits_and_beside_gevent(
    code: str, told: list[str], store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/l.db" if store == "sqlite" else str(request.getfixturevalue("redis_url"))
    head = "from gevent import monkey; monkey.patch_all()\n" if code == GEVENT else ""
    if head:
        pytest.importorskip("gevent")
    process = subprocess.run(
        [sys.executable, "-u", "-c", head + SCRIPT + code, url],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (sorted(process.stdout.split()), process.stderr) == (sorted(told), ""), process.stderr
