"""The fixture with which users test that their own tasks conflict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, LeaseLost, LockHeld, Unique, install, lock
from celery_exclusive.testing.lock_store import LockStore


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose broker and store are not there."""
    app = install(Celery("feeds", broker="redis://127.0.0.1:1", set_as_current=False))
    app.conf.update(task_always_eager=True, exclusive_ttl=20)
    yield app
    app.close()


@pytest.fixture
def import_feed(app: Celery, lock_store: LockStore) -> Any:
    @app.task(shared=False, bind=True, exclusive=Exclusive("url", on_conflict="skip", skip_result="skipped"))
    def import_feed(self: Any, url: str, *, pause: float = 0) -> str:
        lock_store.advance(pause)
        self.lease.check()
        return "imported"

    return import_feed


@pytest.mark.promise(
    "With the `lock_store` fixture eager tasks conflict as real ones do",
    name="lock_store",
    broke="eager tasks that do not conflict with it",
)
def test_a_task_conflicts_with_the_holder_of_its_lock_only(lock_store: LockStore, import_feed: Any) -> None:
    with lock_store.held(import_feed, "a"):
        assert import_feed.delay("a").result == "skipped"
        assert import_feed.delay("b").result == "imported"
        assert import_feed.lock_state("a").is_running
    assert import_feed.delay("a").result == "imported"


@pytest.mark.proves("lock_store")
def test_a_holder_is_dead_when_the_test_lets_its_time_pass(lock_store: LockStore, import_feed: Any) -> None:
    with lock_store.held(import_feed, "a"):
        lock_store.advance(29)
        assert import_feed.delay("a").result == "skipped"
        lock_store.advance(1)
        assert import_feed.delay("a").result == "imported"


@pytest.mark.proves("lock_store")
def test_a_run_that_was_paused_for_too_long_gets_lease_lost(lock_store: LockStore, import_feed: Any) -> None:
    alive = import_feed.delay("a", pause=19)
    dead = import_feed.delay("a", pause=21)
    assert (alive.state, dead.state) == ("SUCCESS", "FAILURE")
    assert isinstance(dead.result, LeaseLost)


@pytest.mark.proves("lock_store")
def test_a_task_that_would_wait_says_so_instead(lock_store: LockStore, app: Celery) -> None:
    @app.task(shared=False, exclusive=Exclusive(key="repo:{number}"))
    def sync(number: int) -> None: ...

    @app.task(shared=False, exclusive=sync.exclusive.replace(on_conflict="latest"))
    def build(number: int) -> None: ...

    would_wait = "would wait for lock x=repo:17, which is held by another-owner"
    with lock_store.held("repo:17"):
        for task in (sync, build):
            with pytest.raises(LockHeld, match=would_wait) as conflict:
                task.delay(17)
            assert conflict.value.holder.startswith("another-owner")


@pytest.mark.proves("lock_store")
def test_a_task_that_gives_up_does_so_at_once(lock_store: LockStore, app: Celery) -> None:
    @app.task(shared=False, exclusive=Exclusive(key="repo:{number}", give_up_after=60))
    def sync(number: int) -> None: ...

    skips = sync.exclusive.replace(on_conflict="latest", on_give_up="skip", skip_result="skipped")

    @app.task(shared=False, exclusive=skips)
    def build(number: int) -> None: ...

    with lock_store.held("repo:17"):
        assert isinstance(sync.delay(17).result, LockHeld)
        assert build.delay(17).result == "skipped"


def test_a_unique_task_conflicts_with_the_holder_of_its_key(lock_store: LockStore, app: Celery) -> None:
    @app.task(shared=False, unique=Unique())
    def send_digest(user: int) -> str:
        return "sent"

    with lock_store.held(send_digest, 7):
        assert send_digest.delay(7).outcome == "skipped"
        assert send_digest.delay(8).outcome == "published"
    again = send_digest.delay(7)
    assert (again.outcome, again.result) == ("published", "sent")


def test_locks_outside_of_tasks_are_in_it_too(lock_store: LockStore, app: Celery) -> None:
    with lock("repo:17", app=app):
        assert lock_store.look("repo:17").holders
        with pytest.raises(AssertionError, match="is held already"), lock_store.held("repo:17"):
            pass
    assert not lock_store.look("repo:17").holders


@pytest.mark.promise(
    "`lock_store.held` holds a lock as often as its limit allows",
    name="lock_store.held",
    broke="red before: the second was held already",
)
def test_a_lock_with_a_limit_is_held_as_often_as_that_allows(lock_store: LockStore, app: Celery) -> None:
    @app.task(shared=False, exclusive=Exclusive("tenant", limit=3, on_conflict="skip", skip_result="skipped"))
    def crawl(tenant: str) -> str:
        return "crawled"

    with ExitStack() as holders:
        for number in range(3):
            assert crawl.delay("acme").result == "crawled"
            holders.enter_context(lock_store.held(crawl, "acme"))
            assert len(crawl.lock_state("acme").holders) == number + 1
        assert crawl.delay("acme").result == "skipped"
        assert crawl.delay("zeta").result == "crawled"
        with pytest.raises(AssertionError, match="is held already"), lock_store.held(crawl, "acme"):
            pass
    assert crawl.delay("acme").result == "crawled"


@pytest.mark.proves("lock_store.held")
def test_a_lock_of_a_string_has_the_limit_that_its_holders_name(lock_store: LockStore, app: Celery) -> None:
    with lock_store.held("repo:17", limit=2):
        with lock("repo:17", limit=2, wait=0, app=app):
            pass
        with lock_store.held("repo:17", limit=2), pytest.raises(LockHeld):
            lock("repo:17", limit=2, wait=0, app=app).__enter__()


@pytest.mark.parametrize("number", [1, 2])
def test_every_test_begins_with_an_empty_one(lock_store: LockStore, number: int) -> None:
    assert not list(lock_store.scan())
    lock_store.held("for ever").__enter__()


def test_eager_tasks_without_the_lock_store_do_not_conflict(app: Celery) -> None:
    @app.task(shared=False, exclusive=Exclusive(on_conflict="skip"))
    def outer(is_inner: bool = False) -> Any:
        return "inner" if is_inner else outer.delay(is_inner=True).result

    assert outer.delay().result == "inner"


def test_the_clock_of_the_lock_store_does_not_go_back(lock_store: LockStore) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        lock_store.advance(-1)
