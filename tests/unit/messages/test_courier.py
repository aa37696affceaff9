"""Whatever an answer of the store wakes is published, by whoever asks, and holds nobody up."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_exclusive.core.operations import Acquire, Applied, ForceRelease, Release, Remove
from celery_exclusive.core.records import SECOND
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.stores.base import Reply, Wake
from tests.unit.local import test_lock
from tests.worker.journal import eventually

KEY, LIFE = "x=repo:17", 600 * SECOND
QUEUE = "courier"
"""A queue of their own: in a broker in memory all tests of this process have the same queues."""
LETTER = test_lock.LETTER.replace(b'"routing_key": "celery"', b'"routing_key": "courier"')

SCRIPT = f"""
import sys, time
from celery import Celery
from celery_exclusive import install
from celery_exclusive.core.operations import Acquire, Release
from celery_exclusive.messages.republish import Republisher

publish = Republisher.publish
def slowly(*args, **kwargs):
    time.sleep(1)
    publish(*args, **kwargs)
Republisher.publish = slowly

app = install(Celery(broker=sys.argv[1]))
store = app._celery_exclusive.store
store.apply({KEY!r}, Acquire("holder/1", "token", {LIFE}))
store.apply({KEY!r}, Acquire("first/1", "token", {LIFE}, message={LETTER!r}))
store.apply({KEY!r}, Release("holder/1", "token"))
"""

IMPATIENT = """
import sys, threading
from celery import Celery
from celery_exclusive import install
from celery_exclusive.core.operations import Applied
from celery_exclusive.messages import courier
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.stores.base import Reply, Wake
from celery_exclusive.system.deadline import deadline

courier._FAREWELL = 600
begun = threading.Event()
def blocked(*args, **kwargs):
    begun.set()
    threading.Event().wait()
Republisher.publish_wakes = blocked

courier = install(Celery(broker=sys.argv[1]))._celery_exclusive.courier
courier.follow_up(Reply(Applied(True), (Wake("x=k", "id/1", b"", "", 0),)), wait=0)
begun.wait()
with deadline(0.1):
    courier.close()
"""


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
        connection.default_channel.queue_purge(QUEUE)


def in_queue(app: Celery) -> int:
    with app.connection_for_read() as connection:
        return int(connection.SimpleQueue(QUEUE).qsize())


@pytest.mark.promise(
    "Each message that an answer of the store wakes is published; a broker that blocks publishers delays "
    "no report of an ending",
    name="woken messages are published",
    broke=(
        "red before, classic and quorum: the hard limit struck; a caller that waits for the publisher "
        "without end"
    ),
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.apply(KEY, Release("holder/1", "token")),
        lambda store: store.apply(KEY, ForceRelease("holder/1")),
        lambda store: store.apply(KEY, Acquire("other/1", "token", LIFE, limit=2)),
    ],
    ids=["release", "force release", "a higher limit"],
)
def test_the_message_that_an_answer_names_is_published_whatever_asked(
    app: Celery, store: Any, ask: Any
) -> None:
    assert in_queue(app) == 0
    assert [wake.id for wake in ask(store).wake] == ["first/1"]
    eventually(lambda: in_queue(app) == 1, "the message")


def test_a_message_that_the_reaper_wakes_is_published(app: Celery, store: Any) -> None:
    now = store.clock()
    store._store.clock = lambda: now + 2 * LIFE
    assert [wake.id for wake in store.reap().wake] == ["first/1"]
    eventually(lambda: in_queue(app) == 1, "the message")


@pytest.mark.proves("emptied line")
def test_a_place_whose_message_is_gone_is_reported_and_leaves_the_line(
    app: Celery, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    courier = app._celery_exclusive.courier  # type: ignore[attr-defined]
    courier.follow_up(Reply(Applied(True), (Wake(KEY, "first/1", b"", store.epoch()),)))
    courier.wait(30)
    assert store.inspect(KEY).waiting == 1
    assert (
        f"Task [first] is lost: another program deleted its message from the line of lock {KEY}"
        in caplog.text
    )


@pytest.mark.proves("woken messages are published")
def test_a_broker_that_blocks_delays_no_caller_and_gets_the_next_message_when_it_goes_on(
    app: Celery, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    publish = Republisher.publish

    def blocked(self: Republisher, *args: Any, **kwargs: Any) -> None:
        goes_on.wait()
        publish(self, *args, **kwargs)

    monkeypatch.setattr(Republisher, "publish", blocked)
    store.apply(KEY, Release("holder/1", "token"))
    store.apply(KEY, Remove("first/1"))
    assert in_queue(app) == 0
    goes_on.set()
    eventually(lambda: in_queue(app) == 2, "both messages")


def test_a_message_that_was_not_published_within_its_offer_is_left_to_the_next_offer(
    app: Celery, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, published = threading.Event(), []

    def blocked(self: Republisher, *args: Any, **kwargs: Any) -> None:
        published.append(args)
        goes_on.wait()

    monkeypatch.setattr(Republisher, "publish", blocked)
    app._celery_exclusive.settings  # type: ignore[attr-defined] # noqa: B018
    store.apply(KEY, Release("holder/1", "token"))
    eventually(lambda: published, "the courier at work")
    monkeypatch.setattr("celery_exclusive.messages.courier.time.monotonic", lambda: float("inf"))
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


@pytest.mark.proves("woken messages are published")
def test_a_message_that_cannot_be_read_does_not_stop_wakes_of_other_keys(app: Celery, store: Any) -> None:
    damaged: Any = "no bytes"
    store.apply("x=bad", Acquire("holder/1", "token", LIFE))
    store.apply("x=bad", Acquire("first/1", "token", LIFE, message=damaged))
    store.apply("x=bad", Release("holder/1", "token"))
    store.apply(KEY, Release("holder/1", "token"))
    eventually(lambda: in_queue(app) == 1, "the message of another key")


@pytest.mark.proves("woken messages are published")
def test_a_fork_waits_until_the_thread_has_left_its_lock(app: Celery, store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("celery_exclusive.messages.courier._IDLE", 0.01)
    courier, inside, forked = app._celery_exclusive.courier, threading.Event(), threading.Event()  # type: ignore[attr-defined]

    class Slow:
        """A queue that is asked under the lock whether it is empty."""

        def __init__(self) -> None:
            batches: Any = queue.SimpleQueue()
            self.put, self.get = batches.put, batches.get

        def empty(self) -> bool:
            inside.set()
            forked.wait(0.1)
            return True

    monkeypatch.setattr(courier, "_batches", Slow())
    courier.wait(10)
    assert inside.wait(60)
    pid = os.fork()
    if not pid:
        signal.alarm(30)  # a child that waits for a thread of its parent does so for ever
        courier.wait(10)
        os._exit(0)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.proves("woken messages are published")
def test_a_script_that_ends_at_once_has_published_what_it_has_woken(redis_url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, script, redis_url], check=True, timeout=60)
    with Celery(broker=redis_url, set_as_current=False).connection_for_read() as connection:
        assert connection.SimpleQueue(QUEUE).qsize() == 1


@pytest.mark.proves("one farewell")
def test_a_process_that_has_waited_for_a_blocked_broker_does_not_wait_again_when_it_ends(
    redis_url: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(IMPATIENT)
    subprocess.run([sys.executable, script, redis_url], check=True, timeout=60)


@pytest.mark.promise("A courier that was closed twice publishes again", broke="red before")
def test_a_courier_that_was_closed_twice_publishes_again(app: Celery) -> None:
    courier: Any = app._celery_exclusive.courier  # type: ignore[attr-defined]
    courier.wait(60)
    with courier._guard:
        courier._batches.put(None)
        courier._batches.put(None)
    eventually(lambda: courier._thread is None, "the end of its thread")
    courier.wait(60)
    assert courier._thread
    courier.close()
