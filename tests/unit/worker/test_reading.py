"""What the main process passes to the child that runs a task, and what the child reads of it."""

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
from celery_exclusive.messages.header import HEADER
from celery_exclusive.messages.stored import queue_of
from celery_exclusive.worker.context import WorkerContext
from celery_exclusive.worker.execution import Execution
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.queues import SOURCE
from celery_exclusive.worker.reading import Delivered, read
from celery_exclusive.worker.roster import Roster, SharedRoster

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


def delivered(came: Any) -> Delivered:
    return Delivered.of(SimpleNamespace(id="id", message=came, request_dict=came.headers))


def request(of: Any) -> dict[str, Any]:
    """What Celery makes of a message for its child."""
    info = {"exchange": "e", "routing_key": "r", "priority": of.properties["priority"], "redelivered": False}
    return {**of.headers, "properties": of.properties, "delivery_info": info, "retries": 0}


@pytest.mark.promise(
    "A child makes of a delivery what the main process would; a body of a megabyte goes to the child once; a "
    "message is copied for the store only when the store gets it",
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
def test_child_reads_what_the_main_process_would(task: Any, came: Any) -> None:
    here = delivered(came)
    sent, in_child = pickle.loads(pickle.dumps((request(came), here)))
    delivery = read(here, task, request(came), [1], {})
    assert delivery is not None
    assert delivery == read(in_child, task, sent, [1], {})
    assert delivery.token == here.token


@pytest.mark.proves("delivery is read once")
def test_the_body_of_a_message_goes_to_the_child_once() -> None:
    came = message()
    to_child = pickle.dumps((request(came), came.body, delivered(came)))
    assert len(to_child) < 1.01 * len(BODY)


@pytest.mark.proves("delivery is read once")
def test_reading_shows_the_body_what_the_publisher_has_sent(task: Any) -> None:
    came = message({**OURS, "promoted": "epoch", "route": ["q", "a", "b"], "redelivered": True})
    sent, in_child = pickle.loads(pickle.dumps((request(came), delivered(came))))
    assert read(in_child, task, sent, [1], {})
    shown = {"exchange": "a", "routing_key": "b", "priority": 3, "redelivered": True}
    assert sent["delivery_info"] == shown


@pytest.mark.proves("two queues")
@pytest.mark.parametrize(
    "came",
    [
        message(exchange="a", routing_key="b"),
        message({**OURS, "promoted": "epoch", "offered": "x:k", "route": ["q", "a", "b"]}),
    ],
    ids=["from the publisher", "from the store"],
)
def test_a_message_that_a_worker_parks_has_the_queue_that_its_publisher_would_name(
    task: Any, came: Any
) -> None:
    delivery = read(delivered(came), task, request(came), [1], {})
    assert delivery is not None
    assert delivery.exclusive is not None
    assert delivery.park(delivery.acquire(delivery.exclusive)).queue == queue_of("a", "b")


def test_a_priority_that_an_earlier_release_has_written_into_the_header_is_ignored(task: Any) -> None:
    came = message({**OURS, "promoted": "epoch", "priority": 5})
    sent = request(came)
    delivery = read(delivered(came), task, sent, [1], {})
    assert delivery is not None
    assert sent["delivery_info"]["priority"] == delivery.stored.properties["priority"] == 3
    assert "priority" not in delivery.stored.our_header


def gated(task: Any) -> Any:
    task.__trace__ = build_tracer(task.name, task, app=task.app)
    return task


def requested(task: Any, came: Any) -> Any:
    return symbol_by_name(task.Request)(came, app=task.app, task=task, hostname="w")


@pytest.mark.proves("keys made by the child")
def test_message_whose_key_cannot_be_made_fails_its_task_and_its_unique_key_is_released(
    app: Celery, task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    for read_by in ("child", "main process"):
        services.store.apply("u:k", Acquire("id/p", "p", 30 * SECOND))
        came = message({"v": 1, "id": "p", "unique": ["u:k", "finished"]}, body=b"[[1], {}, {}]")
        made = requested(gated(task), came)
        if read_by == "child":
            task.__trace__("id", [object()], {}, pickle.loads(pickle.dumps(made.request_dict)))
            assert "no key" in caplog.text or "OptionError" in caplog.text
        else:
            made.args  # noqa: B018 - decoded, and replaced
            made._args = [object()]
            assert made._read() is None
        services.releaser.drain()
        assert not services.store.inspect("u:k").holders


@pytest.mark.proves("keys made by the child")
def test_message_that_the_worker_cannot_take_apart_fails_its_task_and_stops_no_consumer(
    task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    came = message(body=b"[[1], {}, {}]")
    came.delivery_info["sqs_message"] = None
    made = requested(gated(task), came)
    assert made._read() is None
    task.__trace__("id", [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    assert "raised unexpected" in caplog.text


@pytest.mark.promise(
    "The child that runs a delivery makes the keys that its message does not bring. If it can make none, the "
    "task fails, its unique key is released, and the consumer goes on",
    name="keys made by the child",
    broke="a unique key that is not released, by the child or the main process; an error in the main process",
)
def test_child_makes_the_key_of_a_message_without_one_and_runs_under_it(app: Celery) -> None:
    """A function of the user's may return another key the next time."""
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    heartbeat = Heartbeat(services, "broker", Roster())
    services.workers.append(WorkerContext(services, heartbeat=heartbeat))
    said, asked = count(), list[str]()
    apply = services.store.apply
    services.store.apply = lambda key, *of, **more: asked.append(key) or apply(key, *of, **more)
    app.task(name="clock", shared=False, exclusive=Exclusive(key=lambda _: f"day {next(said)}"))(work)
    app.finalize()
    clock = gated(app.tasks["clock"])
    made = requested(clock, message(None, body=b"[[1], {}, {}]"))
    clock.__trace__("id", [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    assert [key.rpartition("day ")[2] for key in asked] == ["0", "0"]
    assert next(said) == 1


@pytest.mark.proves("keys made by the child")
def test_each_process_warns_once_of_messages_without_a_signature(
    make_app: Callable[..., Celery], caplog: pytest.LogCaptureFixture
) -> None:
    app = install(make_app(exclusive_secret="s" * 32))
    app.task(name="work", shared=False, exclusive=Exclusive("n"))(work)
    app.finalize()
    for _ in range(2):
        read(delivered(message()), app.tasks["work"], request(message()), [1], {})
    assert len([line for line in caplog.messages if "signature" in line]) == 1


@pytest.mark.proves("keys made by the child")
def test_odd_values_of_a_call_fail_its_task_and_release_its_unique_key(app: Celery, task: Any) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    heartbeat = Heartbeat(services, "broker", Roster())
    services.workers.append(WorkerContext(services, heartbeat=heartbeat))
    services.store.apply("u:k", Acquire("id/p", "p", 30 * SECOND))
    came = message({**OURS, "values": {"unique": {"bogus": 1}}}, body=b"[[1], {}, {}]")
    made = requested(gated(task), came)
    task.__trace__("id", [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    services.releaser.drain()
    assert not services.store.inspect("u:k").holders


def test_an_execution_that_fails_leaves_no_lease_to_the_heartbeat(
    app: Celery, task: Any, roster: SharedRoster, monkeypatch: pytest.MonkeyPatch
) -> None:
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    services.workers.append(WorkerContext(services, roster=roster))
    began = list[int]()

    def fail(_: Execution) -> None:
        began.append(len(roster.runs()))
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Execution, "execute", fail)
    made = requested(gated(task), message(body=b"[[1], {}, {}]"))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        task.__trace__("id", [1], {}, pickle.loads(pickle.dumps(made.request_dict)))
    assert (began, roster.runs()) == ([1], [])
