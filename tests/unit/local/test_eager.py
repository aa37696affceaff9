"""`task.apply()` takes the real lock, `task_always_eager` none, and a direct call is a function call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_exclusive import Exclusive, ExclusiveError, LockHeld, OptionError, StoreUnavailable, install, lock
from celery_exclusive.stores.memory import MemoryStore
from tests.worker.journal import eventually

Declare = Callable[..., Any]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("eager", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://eager-tests", exclusive_ttl=5)
    yield app
    app.close()


@pytest.fixture
def store(app: Celery) -> Iterator[MemoryStore]:
    store: MemoryStore = app._celery_exclusive.store  # type: ignore[attr-defined]
    yield store
    assert list(store.scan()) == []
    store.clear()


@pytest.fixture
def sync(app: Celery, store: MemoryStore) -> Any:
    """A task that returns the fence of its lease, which stands."""

    @app.task(name="sync", bind=True, shared=False, exclusive=Exclusive(key="repo:{number}"))
    def sync(self: Any, number: int) -> int:
        self.lease.check()
        assert sync.lock_state(number).holders[0].task_id
        return int(self.lease.fence)

    return sync


# apply() ------------------------------------------------------------------------------------------------


def test_apply_holds_the_lock_while_the_body_runs(sync: Any) -> None:
    fences = [sync.apply((17,)).get() for _ in range(3)]
    assert fences == sorted(set(fences))
    assert not sync.lock_state(17).is_running


@pytest.mark.promise(
    "`apply()` is a real run, re-entrant, retries without waiting for itself",
    name="apply",
    broke="not re-entrant; not released",
)
def test_apply_waits_until_the_lock_is_free(sync: Any, app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "celery_exclusive")
    guard = lock("repo:17", app=app)
    guard.acquire()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: sync.apply((17,), task_id="me").get())
        eventually(lambda: "Task sync[me] waits for lock x=repo:17 held by lock:" in caplog.text, "waiting")
        assert not other.done()
        fence = guard.lease.fence
        guard.release()
        assert other.result(60) > fence


@pytest.mark.proves("raise")
def test_apply_of_a_task_that_raises_or_gives_up_fails(app: Celery, store: MemoryStore) -> None:
    option = Exclusive(key="repo:17", on_conflict="raise")

    @app.task(name="strict", shared=False, exclusive=option)
    def strict() -> str:
        return "loaded"

    @app.task(
        name="hasty", shared=False, exclusive=option.replace(on_conflict="reschedule", give_up_after=0.1)
    )
    def hasty() -> str:
        return "loaded"

    @app.task(name="newest", shared=False, exclusive=hasty.exclusive.replace(on_conflict="latest"))
    def newest() -> str:
        return "loaded"

    @app.task(name="superseding", shared=False, exclusive=newest.exclusive.replace(on_conflict="supersede"))
    def superseding() -> str:
        return "loaded"

    with lock("repo:17", app=app):
        for task, said in (
            (strict, "task strict found lock"),
            (hasty, "held by lock:.*, and gave up after 0.1 s"),
            (newest, "held by lock:.*, and gave up after 0.1 s"),
            (superseding, "held by lock:.*, and gave up after 0.1 s"),
        ):
            failed = task.apply()
            assert failed.state == "FAILURE"
            with pytest.raises(LockHeld, match=said):
                failed.get()
    assert [strict.apply().get(), hasty.apply().get()] == ["loaded"] * 2


def test_apply_of_a_task_that_skips_returns_the_skip_result(
    app: Celery, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_exclusive")

    @app.task(name="load", shared=False, exclusive=Exclusive(key="repo:17", on_conflict="skip"))
    def load() -> str:
        return "loaded"

    @app.task(name="quiet", shared=False, exclusive=load.exclusive.replace(skip_result=None))
    def quiet() -> str:
        return "loaded"

    @app.task(
        name="hasty", shared=False, exclusive=Exclusive(key="repo:17", give_up_after=0.1, on_give_up="skip")
    )
    def hasty() -> str:
        return "loaded"

    with lock("repo:17", app=app):
        assert hasty.apply().get()["skipped"]["existing_id"].startswith("lock:")
        assert "Task hasty[" in caplog.text
        assert "skipped: it waited for lock x=repo:17 held by lock:" in caplog.text
        skipped = load.apply()
        assert skipped.state == "SUCCESS"
        assert skipped.get()["skipped"]["existing_id"].startswith("lock:")
        assert quiet.apply().get() is None
    assert load.apply().get() == "loaded"


@pytest.mark.proves("apply")
def test_inside_its_own_run_apply_is_re_entrant(app: Celery, store: MemoryStore) -> None:
    @app.task(name="outer", bind=True, shared=False, exclusive=Exclusive(key="repo:17", on_conflict="skip"))
    def outer(self: Any, depth: int) -> list[int]:
        inner = middle.apply((depth - 1,)).get() if depth else []
        self.lease.check()  # an inner run ended, and took nothing with it
        return [self.lease.fence, *inner]

    @app.task(name="middle", bind=True, shared=False, exclusive=Exclusive())
    def middle(self: Any, depth: int) -> list[int]:
        return [0, *outer.apply((depth,)).get()]

    fences = outer.apply((2,)).get()
    assert len(fences) == 5
    assert len({fence for fence in fences if fence}) == 1


@pytest.mark.proves("apply")
def test_a_retry_of_apply_does_not_wait_for_itself(app: Celery, store: MemoryStore) -> None:
    @app.task(
        name="flaky",
        bind=True,
        shared=False,
        exclusive=Exclusive(key="repo:{number}"),
        autoretry_for=(KeyError,),
        retry_backoff=False,
    )
    def flaky(self: Any, number: int) -> int:
        self.lease.check()
        if self.request.retries < 2:
            raise KeyError
        if number == 17:
            raise self.retry(args=(18,), countdown=0, max_retries=5)
        return int(self.request.retries)

    assert flaky.apply((17,)).get() == 3


def test_a_failure_and_an_interruption_give_the_lock_back(app: Celery, store: MemoryStore) -> None:
    @app.task(name="fail", shared=False, exclusive=Exclusive())
    def fail(error: type[BaseException]) -> None:
        raise error

    assert fail.apply((KeyError,)).state == "FAILURE"
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error):
            fail.apply((error,), throw=True)
    assert not fail.lock_state(0).is_running


def test_a_call_can_switch_the_lock_off(app: Celery, sync: Any) -> None:
    @app.task(name="bare", bind=True, shared=False, exclusive=Exclusive(key="repo:17"))
    def bare(self: Any) -> str:
        with pytest.raises(
            ExclusiveError, match=r"task bare holds no lease.*exclusive=None in a call switches"
        ):
            self.lease  # noqa: B018
        if not self.request.retries:
            raise self.retry(countdown=0)
        return "done"

    with lock("repo:17", app=app):
        assert bare.apply(exclusive=None).get() == "done"
        assert bare.s().set(exclusive=None).apply().get() == "done"
    with pytest.raises(OptionError, match=r"task bare: exclusive=True is not an option of a call"):
        bare.apply(exclusive=True)


def test_chains_groups_and_chords_run_each_member_under_its_lock(sync: Any, app: Celery) -> None:
    @app.task(name="count", shared=False)
    def count(fences: list[int]) -> int:
        return len(fences)

    one = group(sync.s(17), sync.s(17), sync.s(18)).apply().get()
    assert len(set(one)) == 3
    assert chord([sync.s(17), sync.s(17)], count.s()).apply().get() == 2
    first, second = sync.si(17), sync.si(17)
    done = chain(first, second).apply()
    assert done.get() > done.parent.get()


def test_arguments_that_do_not_fit_fail_as_in_celery(sync: Any) -> None:
    assert isinstance(sync.apply(()).result, TypeError)


def test_without_a_store_apply_raises(app: Celery) -> None:
    app.conf.update(exclusive_store="redis://127.0.0.1:1/0")

    @app.task(name="sync", shared=False, exclusive=Exclusive())
    def sync() -> None:
        raise AssertionError("it ran")

    with pytest.raises(StoreUnavailable):
        sync.apply()


@pytest.mark.proves("on_store_error")
@pytest.mark.parametrize("said", ["by the task", "by the setting"])
def test_without_a_store_apply_runs_where_that_is_allowed(
    app: Celery, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.update(exclusive_store="redis://127.0.0.1:1/0")
    if said == "by the setting":
        app.conf.update(exclusive_on_store_error="allow")
    option = Exclusive(on_store_error="allow") if said == "by the task" else Exclusive()

    @app.task(name="sync", bind=True, shared=False, exclusive=option)
    def sync(self: Any) -> str:
        with pytest.raises(ExclusiveError, match=r"sync runs without a lease: .*'allow'"):
            self.lease.check()
        return "done"

    assert sync.apply(task_id="me").get() == "done"
    assert "Task sync[me] runs without lock x:sync, as on_store_error='allow' says" in caplog.text


# task_always_eager --------------------------------------------------------------------------------------


@pytest.mark.promise(
    "`task_always_eager` asks no store; a direct call has no lease",
    name="always eager",
    broke="asks the store; memory lease ends",
)
def test_under_always_eager_no_store_is_asked_and_nothing_conflicts(app: Celery) -> None:
    app.conf.update(task_always_eager=True, exclusive_store="redis://127.0.0.1:1/0", exclusive_ttl=0.1)

    @app.task(name="sync", bind=True, shared=False, exclusive=Exclusive(on_conflict="skip"))
    def sync(self: Any, depth: int) -> list[int]:
        if not self.request.retries:
            raise self.retry(countdown=0)
        outer = self.lease.fence
        inner = sync.delay(depth - 1).get(disable_sync_subtasks=False) if depth else []
        time.sleep(0.2)  # for longer than ttl
        self.lease.check()
        assert self.lease.key == "x:sync"
        return [outer, *inner]

    calls = (sync.delay(1), sync.apply((1,)), sync.s(1).apply_async(), chain(sync.si(1)).delay())
    fences = [fence for call in calls for fence in call.get()]
    assert len(fences) == 8
    assert fences == sorted(set(fences))


# Direct calls -------------------------------------------------------------------------------------------


@pytest.mark.proves("always eager")
def test_a_direct_call_is_a_function_call(app: Celery, sync: Any) -> None:
    @app.task(name="outer", shared=False, exclusive=Exclusive())
    def outer() -> None:
        sync(17)

    for call in (lambda: sync(17), lambda: outer.apply(throw=True)):
        with pytest.raises(ExclusiveError, match=r"task sync holds no lease: .*a plain function call"):
            call()
    with lock("repo:17", app=app):

        @app.task(name="add", shared=False, exclusive=Exclusive(key="repo:17"))
        def add(a: int, b: int) -> int:
            return a + b

        assert add(1, 2) == 3
