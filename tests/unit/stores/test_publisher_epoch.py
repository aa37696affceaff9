"""What a publisher tells of its store, without ever depending on it."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from celery_exclusive import Exclusive, install
from celery_exclusive.errors import OptionError, StoreUnavailable
from celery_exclusive.messages.header import Header
from celery_exclusive.stores import publisher_epoch as module
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.publisher_epoch import PublisherEpoch
from celery_exclusive.system.threads import NativeThread
from tests.worker.journal import eventually


def work() -> None: ...


class Counted:
    """Opens a store, counts how often, and fails on demand."""

    def __init__(self) -> None:
        self.store = MemoryStore("memory://", prefix="mark")
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self) -> MemoryStore:
        self.asked += 1
        if self.error:
            raise self.error
        return self.store


@pytest.fixture(autouse=True)
def _longest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine may take its time to answer."""
    monkeypatch.setattr(module, "_LONGEST_WAIT", 60)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_store_is_asked_once_a_minute(clock: list[float]) -> None:
    opened = Counted()
    epoch = PublisherEpoch(opened)
    assert epoch.read() == epoch.read() == opened.store.epoch()
    assert opened.asked == 1
    opened.store.clear()
    clock[0] += 59
    assert epoch.read() != opened.store.epoch()
    clock[0] += 2
    assert epoch.read() == opened.store.epoch()
    assert opened.asked == 2


@pytest.mark.parametrize("error", [StoreUnavailable("down"), OptionError("no store"), OSError("broken")])
def test_without_an_answer_there_is_no_epoch_and_no_other_question_for_a_minute(
    clock: list[float], error: Exception
) -> None:
    opened = Counted()
    epoch = PublisherEpoch(opened)
    opened.error = error
    assert epoch.read() is None
    opened.error = None
    assert epoch.read() is None
    assert opened.asked == 1
    clock[0] += 61
    assert epoch.read() == opened.store.epoch()


def test_a_store_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.1)
    opened, answers = Counted(), threading.Event()

    class Hanging(MemoryStore):
        def epoch(self) -> str:
            answers.wait(60)
            return opened().epoch()

    store = Hanging("memory://hanging")
    epoch = PublisherEpoch(lambda: store)
    assert epoch.read() is None
    assert not opened.asked
    answers.set()
    eventually(lambda: epoch.read() == opened.store.epoch(), "the late answer")


def test_a_forked_child_asks_for_itself() -> None:
    opened = Counted()
    epoch = PublisherEpoch(opened)
    epoch.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: pytest may have threads
        child = os.fork()
    if child == 0:
        epoch.read()
        epoch.read()
        os._exit(opened.asked)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.fixture
def published() -> Iterator[list[Any]]:
    """Our header of every message that is published."""
    seen: list[Any] = []

    def see(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers.get("exclusive"))

    before_task_publish.connect(see, weak=False)
    yield seen
    before_task_publish.disconnect(see)


@pytest.mark.parametrize(
    ("conf", "is_known"),
    [
        ({"exclusive_store": "memory://"}, True),
        ({"exclusive_store": "redis://127.0.0.1:1"}, False),
        ({"exclusive_store": "orakel://"}, False),
    ],
)
def test_a_message_carries_the_epoch_and_is_published_without_one_too(
    published: list[Any], conf: dict[str, Any], is_known: bool
) -> None:
    app = install(Celery("marked", broker="memory://", set_as_current=False))
    app.conf.update(conf)
    task = app.task(name="load", shared=False, exclusive=Exclusive())(work)
    task.delay()
    task.apply_async(exclusive=None)
    assert [header.get("store") is not None for header in published] == [is_known, False]
    if is_known:
        assert published[0]["store"] == app._celery_exclusive.store.epoch()  # type: ignore[attr-defined]
    app.close()


@pytest.mark.parametrize(
    ("more", "store"), [({}, None), ({"store": 7}, None), ({"store": "m"}, "m"), ({"later": {"a": 1}}, None)]
)
def test_a_header_of_another_version_of_this_library_can_be_read(more: dict[str, Any], store: Any) -> None:
    header = Header.of({"v": 1, "id": "i", "exclusive": "k", **more})
    assert header == Header("i", "k", store=store)


def test_a_process_that_may_start_no_thread_publishes_without_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: NativeThread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(NativeThread, "start", refuse)
    assert PublisherEpoch(lambda: MemoryStore("memory://mark")).read() is None
