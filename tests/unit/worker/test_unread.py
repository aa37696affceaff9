"""What the main process gives to the child that runs a task, and reads itself only when it has to."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from kombu.message import Message
from kombu.utils.imports import symbol_by_name

from celery_exclusive import Exclusive, Unique, install
from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError
from celery_exclusive.messages.header import HEADER
from celery_exclusive.worker.queues import SOURCE
from celery_exclusive.worker.unread import Unread

BODY = b"x" * 1_000_000
OF_QUEUE = {"queue": "q", "auto_delete": False, "is_fanout": False, "can_be_parked": True}
OURS: dict[str, Any] = {"v": 1, "id": "p", "exclusive": "x:k", "unique": ["u:k", "finished"]}


def work(n: int) -> int:
    return n


@pytest.fixture
def task(app: Celery) -> Any:
    app.task(name="work", shared=False, exclusive=Exclusive("n"), unique=Unique("n"))(work)
    app.finalize()
    return app.tasks["work"]


def message(header: Any = OURS, *, body: bytes = BODY, **info: Any) -> Any:
    headers = {"task": "work", "id": "id", **({HEADER: header} if header else {})}
    info = {"exchange": "", "routing_key": "q", SOURCE: OF_QUEUE, **info}
    properties = {"priority": 3, "delivery_tag": "tag"}
    return Message(
        body=body, content_type="application/json", content_encoding="utf-8", headers=headers,
        properties=properties, delivery_info=info,
    )  # fmt: skip


def unread_of(came: Any) -> Unread:
    return Unread.of(SimpleNamespace(id="id", message=came, request_dict=came.headers))


def request(of: Any) -> dict[str, Any]:
    """What Celery makes of a message for its child."""
    info = {"exchange": "e", "routing_key": "r", "priority": of.properties["priority"], "redelivered": False}
    return {**of.headers, "properties": of.properties, "delivery_info": info, "retries": 0}


@pytest.mark.promise(
    "A child makes of a delivery what the main process would; it is read once, and a body of a megabyte "
    "goes to the child once; a message is copied for the store only when the store gets it",
    name="delivery is read once",
    broke="a delivery pickled without its redelivery; a route that is not restored; the header as it came",
)
@pytest.mark.parametrize(
    "came",
    [
        message(),
        message(None),
        message({**OURS, "values": {"exclusive": {"ttl": 3}}}),
        message({**OURS, "promoted": "epoch", "offered": "x:k"}),
        message(exchange="a", routing_key="b"),
        message(redelivered=True),
    ],
)
def test_the_child_reads_what_the_main_process_would(task: Any, came: Any) -> None:
    unread = unread_of(came)
    sent, in_child = pickle.loads(pickle.dumps((request(came), unread)))
    here = unread.read(task, request(came), [1], {})
    there = in_child.read(task, sent, [1], {})
    assert here is not None
    assert here == there
    assert here.token == unread.token


@pytest.mark.proves("delivery is read once")
def test_a_delivery_is_read_once_in_each_process(task: Any) -> None:
    unread = unread_of(message())
    first = unread.read(task, request(message()), [1], {})
    assert unread.read(task, {}, [2], {}) is first
    assert not pickle.loads(pickle.dumps(unread))._read


@pytest.mark.proves("delivery is read once")
def test_the_body_of_a_message_goes_to_the_child_once() -> None:
    came = message()
    to_child = pickle.dumps((request(came), came.body, unread_of(came)))
    assert len(to_child) < 1.01 * len(BODY)


@pytest.mark.proves("delivery is read once")
def test_reading_a_delivery_shows_the_body_what_the_publisher_has_sent(task: Any) -> None:
    came = message({**OURS, "promoted": "epoch", "route": ["q", "a", "b"], "redelivered": True})
    sent, unread = pickle.loads(pickle.dumps((request(came), unread_of(came))))
    assert unread.read(task, sent, [1], {})
    shown = {"exchange": "a", "routing_key": "b", "priority": 3, "redelivered": True}
    assert sent["delivery_info"] == shown


def test_a_priority_that_an_earlier_release_has_written_into_the_header_is_ignored(task: Any) -> None:
    came = message({**OURS, "promoted": "epoch", "priority": 5})
    sent = request(came)
    delivery = unread_of(came).read(task, sent, [1], {})
    assert delivery is not None
    assert sent["delivery_info"]["priority"] == delivery.stored.properties["priority"] == 3
    assert "priority" not in delivery.stored.our_header


@pytest.mark.proves("unread deliveries")
def test_a_message_without_a_key_is_an_error_in_each_process_and_its_unique_key_is_released(
    app: Celery, task: Any
) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    services.store.apply("u:k", Acquire("id/p", "p", 30 * SECOND))
    unread = unread_of(message({"v": 1, "id": "p", "unique": ["u:k", "finished"]}))
    assert unread.try_to_read(task, request(message()), [object()], {}) is None
    services.releaser.drain()
    assert not services.store.inspect("u:k").holders
    for there in (unread, pickle.loads(pickle.dumps(unread))):
        with pytest.raises(OptionError, match="work"):  # also where a key could be made
            there.read(task, request(message()), [1], {})


@pytest.mark.proves("unread deliveries")
def test_a_key_is_made_once_for_all_processes_that_read_the_delivery(app: Celery) -> None:
    """A function of the user's may say something else in the child, or at the next beat."""
    said = count()
    app.task(name="clock", shared=False, exclusive=Exclusive(key=lambda _: f"day {next(said)}"))(work)
    app.finalize()
    clock: Any = app.tasks["clock"]
    unread = unread_of(message(None))
    assert not unread.is_plain(clock)
    read = unread.read(clock, request(message()), [1], {})
    in_child = pickle.loads(pickle.dumps(unread)).read(clock, request(message()), [1], {})
    assert read.exclusive.key.endswith("day 0")  # type: ignore[union-attr]
    assert in_child.exclusive == read.exclusive  # type: ignore[union-attr]


@pytest.mark.proves("unread deliveries")
def test_a_request_makes_the_key_of_a_message_and_its_child_runs_under_that(app: Celery) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    said, asked = count(), list[str]()
    apply = services.store.apply
    services.store.apply = lambda key, *of: asked.append(key) or apply(key, *of)
    app.task(name="clock", shared=False, exclusive=Exclusive(key=lambda _: f"day {next(said)}"))(work)
    app.finalize()
    clock: Any = app.tasks["clock"]
    clock.__trace__ = build_tracer("clock", clock, app=app)
    came = message(None, body=b"[[1], {}, {}]")
    made = symbol_by_name(clock.Request)(came, app=app, task=clock, hostname="w")
    clock.__trace__("id", [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    assert asked == [made._delivery.exclusive.key] * 2
    assert next(said) == 1


@pytest.mark.promise(
    "The main process leaves a first delivery that brings its keys unread. It reads all others at their "
    "receipt, makes their keys, and the child gets these keys, or the error",
    name="unread deliveries",
    broke=(
        "each condition left out; nothing read at its receipt; keys, error or `is_new` not pickled; a "
        "unique key that is not released"
    ),
)
@pytest.mark.parametrize(
    ("came", "is_plain"),
    [
        (message(), True),
        (message({**OURS, "store": "epoch", "published_by": "another", "duplicate_of": "first"}), True),
        (message(None), False),
        (message("no header"), False),
        (message({**OURS, "v": 2}), False),
        (message({**OURS, "id": 7}), False),
        (message({**OURS, "exclusive": None}), False),
        (message({**OURS, "unique": ["u:k", "some day"]}), False),
        (message({"v": 1, "id": "p", "unique": ["u:k", "finished"]}), False),
        (message({"v": 1, "id": "p", "exclusive": "x:k"}), False),
        (message({**OURS, "values": {}}), False),
        (message({**OURS, "promoted": "epoch"}), False),
        (message({**OURS, "route": ["q", "a", "b"]}), False),
        (message(redelivered=True), False),
    ],
)
def test_only_a_first_delivery_that_brings_its_keys_is_left_unread(
    task: Any, came: Any, is_plain: bool
) -> None:
    assert unread_of(came).is_plain(task) is is_plain


@pytest.mark.proves("unread deliveries")
def test_nothing_is_plain_that_was_rejected_or_has_to_be_signed(
    make_app: Callable[..., Celery], task: Any
) -> None:
    rejected = message()
    rejected.headers["x-death"] = [{"reason": "rejected", "queue": "q", "count": 1}]
    assert not unread_of(rejected).is_plain(task)
    app = install(make_app(exclusive_secret="s" * 32))
    app.task(name="work", shared=False, exclusive=Exclusive("n"))(work)
    app.finalize()
    assert not unread_of(message()).is_plain(app.tasks["work"])


@pytest.mark.proves("unread deliveries")
def test_only_the_first_reader_warns_of_a_message_without_a_signature(
    make_app: Callable[..., Celery], caplog: pytest.LogCaptureFixture
) -> None:
    for reader in ("first", "child"):
        app = install(make_app(exclusive_secret="s" * 32))
        app.task(name="work", shared=False, exclusive=Exclusive("n"))(work)
        app.finalize()
        if reader == "first":
            unread = unread_of(message())
        unread.read(app.tasks["work"], request(message()), [1], {})
        unread = pickle.loads(pickle.dumps(unread))
    assert len([line for line in caplog.messages if "signature" in line]) == 1
