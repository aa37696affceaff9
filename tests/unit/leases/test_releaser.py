"""What is owed to a store is given back when it answers, also by a child that was forked meanwhile."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.signals import worker_process_shutdown

from celery_exclusive.core.claim import Claim
from celery_exclusive.core.operations import Release
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases.releaser import Releaser
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.stores.base import open_store
from celery_exclusive.worker.undeclared import Undeclared
from tests.worker.journal import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.proves("unique, unknown message"),
]


class SilentStore:
    def __init__(self) -> None:
        self.is_silent = True
        self.got: list[str] = []

    def apply(self, key: str, _: Any) -> None:
        if self.is_silent:
            raise StoreUnavailable("no answer")
        self.got.append(key)


def test_all_is_released_in_a_child_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_exclusive.leases.releaser._PAUSE", 0.01)
    store = SilentStore()
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    releaser.add(("before", Release("a", "t", ending="open")))
    child = os.fork()
    try:
        store.is_silent = False
        releaser.add(("after", Release("b", "t", ending="open")))
        eventually(lambda: store.got == ["before", "after"], "both", 30)
    finally:
        if not child:
            os._exit(len(store.got) != 2)
    assert os.waitpid(child, 0) == (child, 0)
    releaser.add(("when the thread has ended", Release("c", "t", ending="open")))
    eventually(lambda: len(store.got) == 3, "a third")


def test_the_key_of_a_message_that_runs_elsewhere_is_left_alone() -> None:
    store = open_store("memory://", prefix="releaser")
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    for id, phase in (("runs", "running"), ("waits", "queued")):
        claim = Claim(f"u:{id}", f"{id}/p", "of its delivery", SECOND)
        store.apply(claim.key, claim.acquire_alone(600 * SECOND, phase))  # type: ignore[arg-type]
        releaser.add_message(id, Header("p", unique=(claim.key, "finished")))
    releaser.drain()
    assert [bool(store.inspect(key).holders) for key in ("u:runs", "u:waits")] == [True, False]


def test_a_lease_that_cannot_be_released_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class StoreWithAnError(SilentStore):
        def apply(self, key: str, _: Any) -> None:
            if key == "bad":
                raise ValueError(key)
            self.got.append(key)

    store = StoreWithAnError()
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    for key in ("bad", "good"):
        releaser.add((key, Release("a", "t", ending="open")))
    releaser.drain()
    assert store.got == ["good"]
    assert "the lease on bad was not released and expires after its ttl" in caplog.text


@pytest.mark.parametrize("what", ["new", "promoted", "redelivered", "redelivered, with a lock"])
def test_an_unknown_task_keeps_its_unique_key_while_it_may_be_in_line(app: Celery, what: str) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    claim = Claim("u:key", "id/p", "p", SECOND)
    services.store.apply(claim.key, claim.acquire_alone(600 * SECOND, "queued"))
    x = "x:key" if "lock" in what else None
    header = Header("p", x, (claim.key, "finished"), promoted="epoch" if what == "promoted" else None)
    message = SimpleNamespace(
        headers={"id": "id", HEADER: header.write()}, delivery_info={"redelivered": "redelivered" in what}
    )
    Undeclared(services)._refuse(message=message)
    services.releaser.drain()
    assert bool(services.store.inspect(claim.key).holders) == (
        what in ("promoted", "redelivered, with a lock")
    )
    services.store.clear()


@pytest.mark.promise(
    "Keys that cannot be released, and are too many to remember, are two lines of the log",
    broke="a line for each",
)
def test_dropped_releases_are_logged_at_the_first_one_and_when_the_store_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_exclusive.leases.releaser._MOST", 2)
    store = SilentStore()
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    for number in range(300):
        releaser.add((f"key {number}", Release("a", "t", ending="open")))
    assert caplog.text.count("could not be released: ") == 1
    store.is_silent = False
    releaser.drain()
    assert sorted(store.got) == ["key 298", "key 299"]
    assert caplog.text.count("could not be released: ") == 2
    # The thread may have tried key 0 already, and put it behind key 1.
    assert re.search(r"could not be released: 298, the first on key key [01]\.", caplog.text)


@pytest.mark.promise(
    "A worker that stops logs the leases that it could not release in 8 s",
    broke="not logged",
)
def test_leases_that_are_not_released_at_shutdown_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_exclusive.leases.releaser._MOST", 2)
    monkeypatch.setattr("celery_exclusive.leases.releaser._FAREWELL", 0.01)
    store = SilentStore()
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    for key in ("too many", "second", "third"):
        releaser.add((key, Release("a", "t", ending="open")))
    (dropped,) = re.findall(r"could not be released: 1, the first on key (too many|second)\.", caplog.text)
    releaser.drain()
    assert re.search(r"could not be released: 2, the first on key [\w ]+\.", caplog.text)
    store.is_silent = False
    monkeypatch.setattr("celery_exclusive.leases.releaser._FAREWELL", 60)
    releaser.drain()
    assert sorted([dropped, *store.got]) == ["second", "third", "too many"]


@pytest.mark.proves("replaced child releases")
def test_a_child_that_ends_leaves_to_its_parent_what_that_owes(caplog: pytest.LogCaptureFixture) -> None:
    store = SilentStore()
    services: Any = SimpleNamespace(store=store)
    releaser = Releaser(services)
    releaser.add(("of the parent", Release("a", "t", ending="open")))
    child = os.fork()
    if not child:
        worker_process_shutdown.send(None, pid=os.getpid(), exitcode=0)
        os._exit("could not be released" in caplog.text)
    assert os.waitpid(child, 0) == (child, 0)
    store.is_silent = False
    releaser.drain()
    assert store.got == ["of the parent"]
