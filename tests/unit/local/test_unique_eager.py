"""Unique tasks without a message: `apply()`, `task_always_eager` and direct calls."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_exclusive import DuplicateTask, Unique
from celery_exclusive.core.claim import Claim
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.memory import MemoryStore


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
