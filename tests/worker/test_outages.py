"""When a server goes away: tasks wait, results stay, and what the broker or the store kept goes on."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.republish import Republisher
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.stores.base import Wake
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import stop_consuming

DEADLINE = 90
StartRedis = Callable[..., RedisServer]


@pytest.fixture
def apart(make_lab: Callable[..., Lab], store: RedisServer, acks: dict[str, Any]) -> Callable[..., Lab]:
    """Makes a lab with leases on `store` and its broker elsewhere."""
    return lambda **conf: make_lab(
        module="tests.worker.shop_canvas",
        **{"exclusive_store": f"{store.url}?socket_timeout=1", "exclusive_ttl": 9, **acks, **conf},
    )


def answer(result: Any) -> Any:
    """What a task has returned, by looking: who waits while the results' server restarts may miss it."""
    eventually(result.ready, f"the end of {result.id}", DEADLINE)
    return result.get()


def open_file(lab: Lab, tag: str) -> None:
    (lab.folder / f"door-{tag}").touch()


def sit(lab: Lab, tag: str = "holder") -> Any:
    """One body that goes on whatever is down, until its file is there."""
    result = lab.send("sit", "k", tag)
    lab.journal.wait_for("start", tag=tag)
    return result


def numbers(lab: Lab, *which: int) -> list[Any]:
    return [lab.send("number", n, "k") for n in which]


def start_another(lab: Lab) -> None:
    """kombu's Redis transport ends a worker that has unacknowledged messages when its broker goes down."""
    lab.start_worker("another", 2)


def assert_nothing_is_left(lab: Lab, store: RedisServer) -> None:
    """No line, and no key in the store that would stay for ever, apart from the marks of the whole store."""
    eventually(lambda: lab.waiting("number", 0, "k") == 0, "an empty line")
    with store.client() as client:

        def ever() -> set[bytes]:
            return {key for key in client.scan_iter("cx2:*") if client.ttl(key) == -1}

        marks = {b"cx2:{0}:" + name for name in (b"fence", b"epoch", b"run", b"broker")}
        eventually(lambda: ever() <= marks, f"no keys without TTL, there were {ever()}")


def assert_each_ran_once(lab: Lab) -> None:
    repeated = {tag: count for tag, count in Counter(lab.journal.tags("start")).items() if count > 1}
    assert not repeated


@pytest.mark.parametrize(
    ("of_call", "of_worker"),
    [({"soft_time_limit": 8}, ()), ({}, ("--time-limit=8",))],
    ids=["call", "worker"],
)
def test_a_time_limit_does_not_end_a_task_that_waits_for_the_store(
    apart: Callable[..., Lab], store: RedisServer, of_call: dict[str, int], of_worker: tuple[str, ...]
) -> None:
    lab = apart(exclusive_store_wait=20)
    worker = lab.start_worker("w1", 2, options=of_worker)
    store.stop()
    result = lab.send("number", 1, "k", options=of_call)
    worker.wait_for_log(f"[{result.id}] goes back to the broker")
    store.restart()
    assert answer(result) == 1
    assert_each_ran_once(lab)


@pytest.mark.proves("store outage loses nothing")
@pytest.mark.each_part
def test_when_store_and_broker_are_down_together_no_task_is_dropped(
    make_lab: Callable[..., Lab], start_redis: StartRedis, store: RedisServer, acks: dict[str, Any]
) -> None:
    broker = start_redis(appendonly=True, appendfsync="always")
    lab = make_lab(
        broker.url,
        "tests.worker.shop_canvas",
        exclusive_store=store.url,
        exclusive_store_wait=2,
        broker_transport_options={"visibility_timeout": 10, "unacked_restore_interval": 1},
        **acks,
    )
    worker = lab.start_worker("w1", 1)
    store.stop()
    (result,) = numbers(lab, 1)
    worker.wait_for_log("waits for its lock's store")
    broker.stop()
    tried = "goes back to the broker" if acks["task_acks_late"] else "could not be published again"
    worker.wait_for_log(tried)
    broker.restart()
    store.restart()
    start_another(lab)
    assert answer(result) == 1
    assert_each_ran_once(lab)


@pytest.mark.promise(
    "With early acknowledgement a task outlives store and broker being unreachable together",
    name="store and broker away",
)
@pytest.mark.parametrize("first", ["store", "broker"])
def test_an_acknowledged_task_outlives_the_retries_of_its_publishing_whichever_server_comes_back_first(
    make_lab: Callable[..., Lab], start_redis: StartRedis, store: RedisServer, first: str
) -> None:
    servers = {"broker": start_redis(appendonly=True, appendfsync="always"), "store": store}
    lab = make_lab(
        servers["broker"].url,
        "tests.worker.shop_canvas",
        exclusive_store=store.url,
        exclusive_store_wait=1,
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1},
        task_acks_late=False,
        task_ignore_result=True,  # Celery would fail at it while the broker is down
    )
    worker = lab.start_worker("w1", 1)
    store.stop()
    numbers(lab, 1)
    worker.wait_for_log("waits for its lock's store")
    servers["broker"].stop()
    worker.wait_for_log("could not be published again")
    servers.pop(first).restart()
    if first == "store":
        lab.journal.wait_for("start", tag="1")
    else:
        eventually(lambda: lab.messages_at_the_broker() == 1, "its copy at the broker")
    for last in servers.values():
        last.restart()
    lab.journal.wait_for("end", tag="1")
    assert_each_ran_once(lab)


@pytest.mark.proves("store and broker away")
def test_an_acknowledged_task_of_a_worker_that_stops_waits_for_the_broker(
    make_lab: Callable[..., Lab], start_redis: StartRedis, store: RedisServer
) -> None:
    broker = start_redis(appendonly=True, appendfsync="always")
    lab = make_lab(
        broker.url,
        "tests.worker.shop_canvas",
        exclusive_store=store.url,
        exclusive_store_wait=600,
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1},
        task_acks_late=False,
        task_ignore_result=True,  # Celery would fail at it while the broker is down
    )
    worker = lab.start_worker("w1", 1)
    store.stop()
    numbers(lab, 1)
    worker.wait_for_log("waits for its lock's store")
    broker.stop()
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for_log("could not be published again")
    broker.restart()
    worker.process.wait(DEADLINE)
    assert lab.journal.tags() == []
    store.restart()
    start_another(lab)
    lab.journal.wait_for("end", tag="1")
    assert_each_ran_once(lab)


class FailingPost(Republisher):
    """Cannot publish the second message."""

    def __init__(self, error: Exception) -> None:
        super().__init__(None)
        self.error = error
        self.tried: list[str] = []

    def publish(self, stored: StoredMessage, *, at_head: bool = False) -> None:
        self.tried.append(stored.routing_key)
        if len(self.tried) == 2:
            raise self.error


@pytest.mark.proves("late copy, unpublishable message")
@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (ConnectionError("the broker is down"), "ab"),
        (OperationalError("the broker is down"), "ab"),
        (ValueError("what no queue is there for"), "abcde"),
    ],
    ids=["no broker", "no broker any more", "this one"],
)
def test_a_message_that_cannot_be_published_does_not_delay_the_others(error: Exception, tried: str) -> None:
    def wake(key: str) -> Wake:
        headers = {HEADER: Header("0", key).write()}
        stored = StoredMessage(b"[]", "application/json", "utf-8", headers, {}, "", f"queue of {key}")
        return Wake(key, "id/0", stored.dump(), "epoch")

    republisher = FailingPost(error)
    republisher.publish_wakes([wake(key) for key in "abcde"])
    assert republisher.tried == [f"queue of {key}" for key in tried]


@pytest.mark.promise(
    "Tasks run after a restart of Redis with its data, and without",
    name="Redis restarted",
    figure="each ends with no key left behind",
)
@pytest.mark.proves("store outage loses nothing")
@pytest.mark.parametrize("servers", ["one server", "two servers"])
def test_a_line_survives_a_restart_of_a_store_that_keeps_its_data(
    make_lab: Callable[..., Lab], redis_url: str, store: RedisServer, acks: dict[str, Any], servers: str
) -> None:
    broker_url = store.url if servers == "one server" else redis_url
    lab = make_lab(broker_url, "tests.worker.shop_canvas", exclusive_store=store.url, **acks)
    lab.start_worker("w1", 2, ready=False)
    lab.start_worker("w2", 2)
    sit(lab)
    results = numbers(lab, *range(5))
    lab.wait_for_line(5, "number", 0, "k")
    store.kill()
    store.restart()
    start_another(lab)
    assert lab.waiting("number", 0, "k") >= 5  # with the holder's own copy, if the broker has sent it again
    open_file(lab, "holder")
    assert [answer(result) for result in results] == list(range(5))
    assert sorted(lab.journal.tags("start")) == [*map(str, range(5)), "holder"]
    assert answer(numbers(lab, 6)[0]) == 6
    assert_nothing_is_left(lab, store)


@pytest.mark.proves("Redis restarted")
def test_after_a_restart_of_the_store_without_data_what_the_broker_kept_runs(
    apart: Callable[..., Lab], store: RedisServer
) -> None:
    lab = apart()
    worker = lab.start_worker("w1", 3)
    holder = sit(lab)
    store.stop()
    results = numbers(lab, 1, 2)
    for result in results:
        worker.wait_for_log(f"[{result.id}] waits for its lock's store")
    results += numbers(lab, 3, 4)
    store.restart(keep_data=False)
    open_file(lab, "holder")
    assert [answer(result) for result in results] == [1, 2, 3, 4]
    assert answer(holder) == "holder"
    assert answer(numbers(lab, 5)[0]) == 5
    assert_each_ran_once(lab)
    assert_nothing_is_left(lab, store)


def test_an_offer_of_a_store_that_has_lost_its_data_still_runs(
    apart: Callable[..., Lab], store: RedisServer
) -> None:
    lab = apart()
    first = lab.start_worker("w1", 1)
    holder = sit(lab)
    stop_consuming(lab, first, "lab")
    second = lab.start_worker("w2", 1)
    (parked,) = numbers(lab, 1)
    lab.wait_for_line(1, "number", 0, "k")
    assert second.stop() == 0
    open_file(lab, "holder")
    assert answer(holder) == "holder"
    eventually(lambda: lab.doors.llen("lab") == 1, "the offer's copy in the queue")
    store.restart(keep_data=False)
    lab.start_worker("w3", 1)
    assert answer(parked) == 1
    assert answer(numbers(lab, 2)[0]) == 2
    assert_each_ran_once(lab)
    assert_nothing_is_left(lab, store)


@pytest.mark.proves("Redis restarted")
def test_after_broker_and_store_on_one_server_have_lost_all_new_tasks_run(
    make_lab: Callable[..., Lab], start_redis: StartRedis, acks: dict[str, Any]
) -> None:
    server = start_redis()
    lab = make_lab(server.url, "tests.worker.shop_canvas", exclusive_ttl=9, **acks)
    lab.start_worker("w1", 2)
    sit(lab)
    numbers(lab, 1, 2)
    lab.wait_for_line(2, "number", 0, "k")
    server.restart(keep_data=False)
    open_file(lab, "holder")
    lab.journal.wait_for("end", tag="holder")
    start_another(lab)
    results = numbers(lab, 3, 4)
    assert [answer(result) for result in results] == [3, 4]
    assert_nothing_is_left(lab, server)
