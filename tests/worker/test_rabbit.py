"""RabbitMQ as broker: the line, its messages, priorities and confirms. See test_rabbit_outages too."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import ChannelError
from celery import chain, chord
from kombu.exceptions import OperationalError

from celery_exclusive.messages.header import HEADER
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.worker.queues import SOURCE
from tests.rabbit import RabbitServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.stage import RABBITS
from tests.worker.test_messages import OPTIONS
from tests.worker.versions import needs_celery

pytestmark = RABBITS[0]
DEADLINE = 90
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
CANVAS = "tests.worker.shop_canvas"
SAYS_PARKED = r"\[(\S+)\] parked: number (\d+) "


@pytest.fixture(params=["redis", "sqlite", "postgres", "maria"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where the leases are; on Redis, since the results are there."""
    if request.param == "redis":
        return {}
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/locks.db" if is_file else request.getfixturevalue(f"{request.param}_url")
    return {"exclusive_store": url}


def in_line(count: int, *workers: Worker) -> list[str]:
    """The ids of so many that these workers have parked while nobody left, in their order in the store.

    A worker says so when the store already has the message.
    """

    def look() -> list[tuple[str, str]]:
        return [line for worker in workers for line in re.findall(SAYS_PARKED, worker.log)]

    eventually(lambda: len(look()) >= count, f"word of {count} that were parked")
    return [id for id, _ in sorted(look(), key=lambda line: int(line[1]))]


def wait_for_empty(server: RabbitServer, lab: Lab, queue: str = "lab") -> None:
    url = lab.conf["broker_url"]
    eventually(lambda: server.messages(url, queue) == 0, f"all of {queue} acknowledged")


@pytest.mark.promise(
    "On classic and quorum queues of RabbitMQ, late and early, with leases on Redis and SQLite, 60 tasks "
    "on one key from two workers run once each, one at a time, in the store's order; and skip",
    broke="limit ignored: 8 of 8",
)
@pytest.mark.proves("workers on other stores")
def test_sixty_on_one_key_run_once_each_one_at_a_time_in_the_stores_order(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any],
    acks: dict[str, Any], store: dict[str, Any],
) -> None:  # fmt: skip
    lab = make_rabbit_lab(queue_type, **acks, **store)
    workers = [lab.start_worker("w1", 4, ready=False), lab.start_worker("w2", 4)]
    workers[0].wait_ready()
    lab.send("wait", "k", tag="holder", hold=True)
    lab.send("skip", "s", tag="first", hold=True)
    lab.journal.wait_for("start", tag="holder")
    lab.journal.wait_for("start", tag="first")
    tags = [f"{number:02}" for number in range(60)]
    results = [lab.send("wait", "k", tag=tag) for tag in tags]
    skipped = lab.send("skip", "s", tag="second")
    lab.wait_for_line(60, "wait", "k")
    arrived = in_line(60, *workers)
    assert list(skipped.get(timeout=DEADLINE)) == ["skipped"]
    lab.open("holder", "first")
    assert [result.get(timeout=DEADLINE) for result in results] == tags
    assert [event["id"] for event in lab.journal.events("start", key="k")][1:] == arrived
    assert lab.journal.most_open(key="k") == 1
    wait_for_empty(rabbit_server, lab)
    assert len(lab.journal.wait_for("end", 62)) == 62
    assert lab.waiting("wait", "k") == 0


@pytest.mark.promise("Chain and chord on one key complete on RabbitMQ", broke="limit ignored")
def test_a_chain_and_a_chord_whose_members_share_one_key_are_complete(
    make_rabbit_lab: Callable[..., Lab], queue_type: dict[str, Any]
) -> None:
    lab = make_rabbit_lab(queue_type, module=CANVAS, **LATE)
    lab.start_worker("w1", 4)
    steps = chain(lab.task("append").s(key="k", tag=str(step)) for step in range(4)).delay()
    sums = chord(lab.task("number").s(n, "k") for n in range(8))(lab.task("total").s("k"))
    assert steps.get(timeout=DEADLINE) == ["0", "1", "2", "3"]
    assert sums.get(timeout=DEADLINE) == sum(range(8))
    assert lab.journal.most_open(key="k") == 1


@pytest.mark.promise(
    "A message returns unchanged from the line to RabbitMQ: priority or none, headers, expires, reply_to, "
    "correlation id, pickle, zlib, bzip2, exchange",
    broke="`reply_to` not kept; no head",
)
def test_every_message_comes_back_from_the_line_as_it_went(
    make_rabbit_lab: Callable[..., Lab], queue_type: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # as root, Celery refuses pickle otherwise
    lab = make_rabbit_lab(queue_type, module=CANVAS, accept_content=["json", "pickle"], **LATE)
    lab.start_worker("w1", 4)
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    options = {what: make() for what, make in OPTIONS.items() if what != "countdown"}  # Celery's own trouble
    results = [lab.task("watched").apply_async(("k", what), **given) for what, given in options.items()]
    lab.wait_for_line(len(results), "hold", "k")
    lab.open("holder")
    lab.journal.wait_for("end", len(results) + 1)
    for result in results:
        first, second = (message_of(event) for event in lab.journal.wait_for("message", 2, id=result.id))
        assert second == first
    assert sorted(lab.journal.tags("start")) == sorted([*options, "holder"])


def message_of(event: dict[str, Any]) -> dict[str, Any]:
    """What a message was when it came, without what is of one delivery."""
    headers, properties = dict(event["headers"]), dict(event["properties"])
    header = headers.pop(HEADER)
    exchange, routing_key = (event["delivery_info"][name] for name in ("exchange", "routing_key"))
    if header.get("route"):
        assert (exchange, routing_key) == ("", header["route"][0])
        _, exchange, routing_key = header["route"]
    properties = {name: value for name, value in properties.items() if value is not None}
    if left := properties.pop("expiration", None):
        assert 0 < int(left) <= 3_600_000
    del properties["application_headers"]
    return {
        "header": (header["id"], header["exclusive"]),
        "headers": headers,
        "properties": properties,
        "where": (exchange, routing_key),
        **{name: event[name] for name in ("body", "content_type", "content_encoding")},
    }


@pytest.mark.promise(
    "On RabbitMQ a promoted task goes behind the tasks of a backlog of 50 that have its priority or a "
    "higher one, behind all where the queue has no priorities; body and retry see its own priority",
    broke="no priority; priority 255",
)
@pytest.mark.parametrize("arguments", [{"x-max-priority": 9}, {}], ids=["priorities", "none"])
def test_a_promoted_task_goes_behind_the_backlog_of_its_priority_and_its_retry_keeps_it(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, arguments: dict[str, Any]
) -> None:
    lab = make_rabbit_lab(
        arguments, module="tests.worker.shop_rabbit", worker_prefetch_multiplier=1, exclusive_offer=60, **LATE
    )
    plain = lab.app.tasks["tests.worker.shop.plain"]
    lab.start_worker("w1", 1, options=("-Q", "side"))
    lab.start_worker("w2", 1, options=("-Q", "lab"))
    lab.send("retried", "k", tag="holder", hold=True, options={"queue": "side"})
    lab.journal.wait_for("start", tag="holder0")
    waiting = lab.send("retried", "k", tag="a", options={"priority": 3})
    lab.wait_for_line(1, "retried", "k")
    plain.delay(tag="busy", hold=True)
    lab.journal.wait_for("start", tag="busy")
    for number in range(50):
        plain.apply_async(kwargs={"tag": f"{number}"}, priority=number % 5 + 1)
    lab.open("holder0")
    lab.journal.wait_for("end", tag="holder0")
    url = lab.conf["broker_url"]
    eventually(lambda: rabbit_server.messages(url, "lab") == 50 + 1 + 1, "the promoted message")
    lab.open("busy")
    assert waiting.get(timeout=DEADLINE) == 3
    lab.journal.wait_for("end", 50 + 1 + 2 + 2)
    tags = lab.journal.tags("start")
    behind = {number % 5 + 1 for number in range(50) if tags.index(f"{number}") > tags.index("a0")}
    assert behind == ({1, 2} if arguments else set())
    priorities = {event["properties"]["priority"] for event in lab.journal.events("message", id=waiting.id)}
    assert priorities == {3}


@pytest.mark.promise(
    "A task that RabbitMQ delayed (quorum, ETA) waits in line and is not delayed again",
    broke="published to the delaying exchange",
)
@needs_celery("5.5", "quorum queues and their delays")
def test_a_task_that_rabbitmq_has_delayed_waits_in_line_and_is_not_delayed_again(
    make_rabbit_lab: Callable[..., Lab],
) -> None:
    lab = make_rabbit_lab({"x-queue-type": "quorum"}, module=CANVAS, **LATE)
    lab.start_worker("w1", 2)
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    results = [lab.task("watched").apply_async(("k", f"{n}"), countdown=n) for n in (1, 2, 3)]
    lab.wait_for_line(3, "hold", "k")
    lab.open("holder")
    for result in results:
        result.get(timeout=DEADLINE)
        first, second = lab.journal.wait_for("message", 2, id=result.id)
        assert first["delivery_info"]["exchange"].startswith("celery_delayed_")
        assert second["headers"][HEADER]["route"][2] == first["delivery_info"]["routing_key"]
        assert second["headers"]["x-death"] == first["headers"]["x-death"]
        assert datetime.fromisoformat(second["headers"]["eta"]) < datetime.now(timezone.utc)
    assert lab.journal.tags("start") == ["holder", "1", "2", "3"]


@pytest.mark.promise(
    "Where RabbitMQ delays messages (quorum), it delays those that are rescheduled, too, and no worker keeps "
    "them until their eta. Their consumer binds their queue to the end of the delays, and drops the copies "
    "that a queue bound by `#` gets",
    broke=(
        "red before: kept by the worker, whose prefetch count they filled; the expiries in `x-death` sent "
        "along: RabbitMQ drops the second delay; bound by each message; each copy rescheduled again"
    ),
)
@needs_celery("5.5", "quorum queues and their delays")
def test_a_task_that_is_rescheduled_on_a_quorum_queue_is_delayed_by_rabbitmq(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer
) -> None:
    topic = {"exchange_type": "topic", "queue_arguments": {"x-queue-type": "quorum"}}
    queues = {
        "lab": {**topic, "exchange": "lab", "routing_key": "lab"},
        "all": {**topic, "exchange": "all", "routing_key": "#"},
    }
    lab = make_rabbit_lab({}, module=CANVAS, task_queues=queues, **LATE)
    url = lab.conf["broker_url"]
    lab.start_worker("w1", 2)
    assert "#.celery-exclusive.lab" in rabbit_server.bindings(url, "lab")
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    later = lab.send("watched_later", "k", "later")
    _, second, third = lab.journal.wait_for("message", 3, id=later.id)
    lab.open("holder")
    for message in (second, third):
        assert message["delivery_info"][SOURCE]["queue"] == "lab"
        assert message["headers"]["x-death"][-1]["queue"].startswith("celery_delayed_")
    assert later.get(timeout=DEADLINE) == "lab"  # the routing key of the publisher
    wait_for_empty(rabbit_server, lab, "all")


@pytest.mark.promise(
    "A message that RabbitMQ refuses, or has no queue for, is an error of our own publishing",
    broke="no confirms; not mandatory",
)
@pytest.mark.parametrize("own_connection", [True, False])
def test_a_message_that_rabbitmq_rejects_is_an_error(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, own_connection: bool
) -> None:
    lab = make_rabbit_lab({"x-max-length": 2, "x-overflow": "reject-publish"})
    lab.start_worker("w1", 1).stop()  # it has declared the queues
    headers = {HEADER: {}}
    stored = StoredMessage(b"[]", "application/json", "utf-8", headers, {"delivery_mode": 2}, "lab", "side")
    republisher = Republisher(lab.app, own_connection=own_connection)
    for _ in range(2):
        republisher.publish(stored, delay=60)  # by an exchange it comes at once, and waits in its worker
    with pytest.raises(OperationalError):
        republisher.publish(stored)
    rabbit_server.delete(lab.conf["broker_url"], "side")
    with pytest.raises(ChannelError, match="NO_ROUTE"):
        republisher.publish(stored)
    for _ in range(2):
        with pytest.raises(ChannelError, match="NO_ROUTE"):
            republisher.publish(stored, at_head=True)
    republisher.publish(
        StoredMessage(b"[]", "application/json", "utf-8", headers, {"delivery_mode": 2}, "", "lab")
    )
    assert rabbit_server.messages(lab.conf["broker_url"], "lab") == 1
    republisher.close()


@pytest.mark.proves("as Celery sends it")
@pytest.mark.parametrize("how", ["by its task", "by its name", "expiration"])
def test_a_unique_key_is_free_when_rabbitmq_has_dropped_its_message(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, how: str
) -> None:
    """RabbitMQ tells nobody that a message has expired in its queue, so nobody releases its key."""
    name = "tests.worker.shop_unique.once"
    expires = {} if how == "expiration" else {"expires": 1}
    lab = make_rabbit_lab({}, module="tests.worker.shop_unique", task_annotations={name: expires})

    def publish(tag: str) -> Any:
        if how == "by its name":
            return lab.app.send_task(name, ("k", tag))
        return lab.send("once", "k", tag, options={"expiration": 1} if how == "expiration" else {})

    publish("lost")
    wait_for_empty(rabbit_server, lab)
    eventually(lambda: publish("next").outcome == "published", "a free key")
