"""Whatever an answer of the store wakes is published, by whoever asks, and holds nobody up."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from celery import Celery

from celery_exclusive.core.document import SECOND
from celery_exclusive.core.operations import Acquire, Break, Release, Remove
from celery_exclusive.parking import Post
from tests.unit.test_lock import LETTER
from tests.worker.journal import eventually

KEY, LIFE = "x:repo:17", 600 * SECOND


@pytest.fixture
def store(app: Celery) -> Any:
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    store.apply(KEY, Acquire("holder/1", "token", LIFE))
    store.apply(KEY, Acquire("first/1", "token", LIFE, message=LETTER))
    store.apply(KEY, Acquire("second/1", "token", LIFE, message=LETTER))
    yield store
    store.clear()
    app._celery_exclusive.courier.close()  # type: ignore[attr-defined]
    with app.connection_for_read() as connection:
        connection.default_channel.queue_purge("celery")


def in_queue(app: Celery) -> int:
    with app.connection_for_read() as connection:
        return int(connection.SimpleQueue("celery").qsize())


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.apply(KEY, Release("holder/1", "token")),
        lambda store: store.apply(KEY, Break("holder/1")),
        lambda store: store.apply(KEY, Acquire("other/1", "token", LIFE, limit=2)),
    ],
    ids=["release", "break", "a higher limit"],
)
def test_whoever_asks_the_message_that_is_woken_is_published(app: Celery, store: Any, ask: Any) -> None:
    assert in_queue(app) == 0
    assert [wake.id for wake in ask(store).wake] == ["first/1"]
    eventually(lambda: in_queue(app) == 1, "the message")


def test_what_the_reaper_wakes_is_published(app: Celery, store: Any) -> None:
    now = store.clock()
    store._store.clock = lambda: now + 2 * LIFE
    assert [wake.id for wake in store.reap().wake] == ["first/1"]
    eventually(lambda: in_queue(app) == 1, "the message")


def test_a_broker_that_blocks_holds_nobody_up_and_gets_the_next_message_when_it_goes_on(
    app: Celery, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    publish = Post.publish

    def blocked(self: Post, *args: Any, **kwargs: Any) -> None:
        goes_on.wait()
        publish(self, *args, **kwargs)

    monkeypatch.setattr(Post, "publish", blocked)
    store.apply(KEY, Release("holder/1", "token"))
    store.apply(KEY, Remove("first/1"))
    assert in_queue(app) == 0
    goes_on.set()
    eventually(lambda: in_queue(app) == 2, "both messages")


def test_what_was_not_published_while_its_offer_lasted_is_left_to_the_next_offer(
    app: Celery, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, published = threading.Event(), []

    def blocked(self: Post, *args: Any, **kwargs: Any) -> None:
        published.append(args)
        goes_on.wait()

    monkeypatch.setattr(Post, "publish", blocked)
    app._celery_exclusive.settings  # type: ignore[attr-defined] # noqa: B018
    store.apply(KEY, Release("holder/1", "token"))
    eventually(lambda: published, "the courier at work")
    monkeypatch.setattr("celery_exclusive.courier.time.monotonic", lambda: float("inf"))
    store.apply(KEY, Remove("first/1"))
    goes_on.set()
    app._celery_exclusive.courier.close()  # type: ignore[attr-defined]
    assert len(published) == 1


def test_a_forked_child_publishes_by_itself(app: Celery, store: Any) -> None:
    store.apply(KEY, Release("holder/1", "token"))
    eventually(lambda: in_queue(app) == 1, "the thread of the parent")
    pid = os.fork()
    if not pid:
        store.apply(KEY, Remove("first/1"))
        os._exit(0 if app._celery_exclusive.courier._pid == os.getpid() else 1)  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
