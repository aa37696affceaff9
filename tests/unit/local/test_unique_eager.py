"""Unique tasks without a message: `apply()`, `task_always_eager` and direct calls."""

from __future__ import annotations

import gc
import weakref
from contextvars import copy_context
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import DuplicateTask, Exclusive, LeaseLost, StoreUnavailable, Unique
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import NoLease
from celery_exclusive.stores.memory import MemoryStore

pytestmark = pytest.mark.proves("lease of a unique task")


@pytest.mark.proves("unique, goes on")
@pytest.mark.parametrize("window", [{"period": 600}, {"until": "started"}])
def test_a_retry_in_apply_is_not_refused_for_the_sake_of_another_call(
    app: Celery, store: MemoryStore, window: Any
) -> None:
    ran: list[int] = []

    @app.task(name="twice", bind=True, shared=False, max_retries=3, unique=Unique("url", **window))
    def twice(self: Any, url: str) -> str:
        ran.append(self.request.retries)
        if not self.request.retries:
            self.apply_async((url,), task_id="queued meanwhile")
            raise self.retry(countdown=0)
        return "done"

    app.finalize()
    assert twice.apply(("a",)).get() == "done"
    assert ran == [0, 1]
    store.clear()


@pytest.mark.promise(
    "`apply()` acquires the unique key while it runs, `task_always_eager` and a direct call do not; from a "
    "hook it meets the next holder",
    name="unique apply",
    broke="it acquires none; `task_always_eager` does",
)
def test_apply_takes_the_key_while_it_runs(app: Celery, store: MemoryStore) -> None:
    seen: list[Any] = []

    @app.task(name="feeds.load", bind=True, shared=False, unique=Unique())
    def load(self: Any, url: str) -> str:
        seen.append(self.lock_state(url))
        seen.append(load.delay(url) if url == "b" else None)
        return url

    result = load.apply(("a",), task_id="me")
    assert (result.get(), result.outcome, result.existing_id) == ("a", "published", None)
    assert (seen[0].unique_holder.task_id, seen[0].is_running) == ("me", True)
    assert load.lock_state("a").unique_holder is None
    with pytest.raises(DuplicateTask, match="its own unique key"):
        load.apply(("b",), throw=True)
    assert load.lock_state("b").unique_holder is None
    assert list(store.scan()) == []


def test_apply_of_what_is_queued_is_skipped_or_raises(make_task: Any) -> None:
    skip, strict = make_task(skip_result="busy"), make_task(name="feeds.strict", on_conflict="raise")
    first = skip.delay("a")
    busy = skip.apply(("a",))
    assert (busy.get(), busy.outcome, busy.existing_id, busy.key) == ("busy", "skipped", first.id, first.key)
    assert skip.apply(("a",), unique=None).get() == "a"
    existing = strict.delay("a")
    with pytest.raises(DuplicateTask) as caught:
        strict.apply(("a",))
    assert caught.value.existing_id == existing.id
    assert skip.lock_state("a").unique_holder.task_id == first.id


def test_apply_until_started_and_for_a_period(make_task: Any) -> None:
    started, seldom = make_task(until="started"), make_task(name="feeds.seldom", period=60)
    assert started.apply(("a",)).get() == "a"
    assert started.lock_state("a").unique_holder is None
    assert seldom.apply(("a",)).get() == "a"
    assert "skipped" in seldom.apply(("a",)).get()


def test_under_always_eager_and_in_a_direct_call_nothing_conflicts(make_task: Any, app: Celery) -> None:
    task = make_task()
    task.delay("a")
    assert task("a") == "a"
    app.conf.task_always_eager = True
    assert task.delay("a").get() == "a"
    assert task.delay("a").outcome == "published"
    assert task.apply_async(("a",), unique=None).get() == "a"


@pytest.mark.proves("unique apply")
def test_apply_from_a_hook_meets_the_next_holder_of_the_key(app: Celery, store: MemoryStore) -> None:
    results: list[Any] = []

    class Repeating(app.Task):  # type: ignore[misc, name-defined]
        abstract = True

        def on_success(self, *_: Any) -> None:
            key = self.lock_state("a").key
            if store.inspect(key).holders:
                return
            store.apply(key, Claim(key, "owner/p", "t", SECOND).acquire_alone(60 * SECOND, "running"))
            results.append(self.apply(("a",)))

    @app.task(name="feeds.load", base=Repeating, shared=False, unique=Unique())
    def load(url: str) -> str:
        return url

    app.finalize()
    load.apply(("a",))
    assert results[0].existing_id == "owner"
    store.clear()


# self.lease -------------------------------------------------------------------------------------------------


def declare(app: Celery, body: Any, name: str = "feeds.save", **options: Any) -> Any:
    """Declare a task that is bound, with these options."""
    task = app.task(name=name, bind=True, shared=False, **options)(body)
    app.finalize()
    return task


def test_apply_of_a_unique_task_gives_its_body_the_lease_of_its_key(app: Celery, store: MemoryStore) -> None:
    def save(self: Any, url: str) -> tuple[str, int]:
        self.lease.check()
        return self.lease.key, self.lease.fence

    task = declare(app, save, unique=Unique())
    first, second = (task.apply(("a",)).get() for _ in range(2))
    assert first[0] == second[0] == task.lock_state("a").key
    assert 0 < first[1] < second[1]


def test_a_unique_lease_that_was_released_by_force_is_lost_in_apply(
    app: Celery, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def save(self: Any, url: str) -> None:
        self.release_lock(url, force=True)
        with pytest.raises(LeaseLost, match="lost"):
            self.lease.check()

    declare(app, save, unique=Unique()).apply(("a",), throw=True)
    assert "lost its lease" in caplog.text


def test_after_its_body_the_lease_of_a_unique_task_is_over_in_apply(app: Celery, store: MemoryStore) -> None:
    told: list[str] = []

    class Late(app.Task):  # type: ignore[misc, name-defined]
        abstract = True

        def on_success(self, *_: Any) -> None:
            with pytest.raises(LeaseLost, match="is over"):
                self.lease.check()
            told.append("over")

    def save(self: Any, url: str) -> None:
        self.lease.check()

    declare(app, save, base=Late, unique=Unique()).apply(("a",), throw=True)
    assert told == ["over"]


@pytest.mark.parametrize("window", [{"period": 600}, {"until": "started"}])
def test_in_apply_a_key_that_is_not_held_until_the_task_has_finished_gives_no_lease(
    app: Celery, store: MemoryStore, window: Any
) -> None:
    def save(self: Any, url: str) -> None:
        with pytest.raises(NoLease, match=r"with unique=Unique\(...\) until 'finished'"):
            self.lease  # noqa: B018

    declare(app, save, unique=Unique(**window)).apply(("a",), throw=True)
    store.clear()


def test_the_lease_in_apply_with_both_options_is_the_lease_of_the_lock(
    app: Celery, store: MemoryStore
) -> None:
    def save(self: Any, url: str) -> str:
        return str(self.lease.key)

    task = declare(app, save, unique=Unique(), exclusive=Exclusive())
    assert task.apply(("a",)).get() == "x:feeds.save"


def test_a_unique_run_inside_its_own_run_has_the_lease_of_that(app: Celery, store: MemoryStore) -> None:
    def save(self: Any, url: str, depth: int) -> list[int]:
        inner = self.apply((url, depth - 1)).get() if depth else []
        self.lease.check()  # the inner run ended, and took nothing with it
        return [self.lease.fence, *inner]

    task = declare(app, save, unique=Unique("url"))
    assert len(set(task.apply(("a", 2), throw=True).get())) == 1


def test_a_retry_in_apply_without_its_lock_has_its_unique_lease(app: Celery, store: MemoryStore) -> None:
    """The call has switched the lock off, and so it is for the retry."""

    def save(self: Any, url: str) -> str:
        if not self.request.retries:
            raise self.retry(countdown=0)
        self.lease.check()
        return str(self.lease.key)

    task = declare(app, save, unique=Unique(), exclusive=Exclusive())
    assert task.apply(("a",), exclusive=None).get().startswith("u:")
    assert task.lock_state("a").unique_holder is None


def test_under_always_eager_a_unique_task_has_a_lease_that_conflicts_with_none(app: Celery) -> None:
    app.conf.update(task_always_eager=True, exclusive_store="redis://127.0.0.1:1/0")

    def save(self: Any, url: str, depth: int) -> list[int]:
        inner = self.delay(url, depth - 1).get(disable_sync_subtasks=False) if depth else []
        self.lease.check()
        return [self.lease.fence, *inner]

    fences = declare(app, save, unique=Unique("url")).delay("a", 1).get()
    assert len(set(fences)) == 2


def test_apply_of_a_unique_task_that_may_run_without_a_store_has_no_lease(app: Celery) -> None:
    app.conf.update(exclusive_store="redis://127.0.0.1:1/0")

    def save(self: Any, url: str) -> None:
        with pytest.raises(NoLease, match="store did not answer"):
            self.lease  # noqa: B018

    with pytest.raises(StoreUnavailable):
        declare(app, save, unique=Unique()).apply(("a",), throw=True)
    declare(app, save, name="careless", unique=Unique(on_store_error="allow")).apply(("a",), throw=True)


class Argument:
    """An argument that can be observed."""


@pytest.mark.proves("no cycles")
def test_arguments_of_apply_are_freed_without_the_garbage_collector(app: Celery) -> None:
    @app.task(name="feeds.load", shared=False, unique=Unique(key="one"))
    def load(argument: Argument) -> None: ...

    def apply() -> weakref.ref[Argument]:
        load.apply((argument := Argument(),)).get()
        return weakref.ref(argument)

    apply()
    gc.disable()
    try:
        assert apply()() is None
    finally:
        gc.enable()


@pytest.mark.proves("no cycles")
def test_a_context_that_outlives_apply_keeps_no_arguments(app: Celery) -> None:
    contexts = []

    @app.task(name="feeds.load", shared=False, unique=Unique(key="one"))
    def load(argument: Argument) -> None:
        contexts.append(copy_context())

    load.apply((argument := Argument(),)).get()
    seen = weakref.ref(argument)
    del argument
    gc.collect()
    assert contexts
    assert seen() is None
