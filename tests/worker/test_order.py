"""order="published": the tasks of a key start as they were published, whatever happens to them on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, group
from kombu import Producer

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.publishing.ordered import OrderedPublish
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message
from tests.worker.stage import Stage, on_stages

pytestmark = pytest.mark.promise(
    'With `order="published"` tasks start as they were published, in prefork and threads, on Redis and '
    "RabbitMQ, by two workers and twelve producers; through a killed worker, a lost message, retries, "
    "canvases and unique keys. A busy key's call goes to no queue",
    name="order of publishing",
    broke="explorer: a dead run loses its place",
    also="the explorer, with the settings `order: ...`",
)

SHOP = "tests.worker.shop_order"


@pytest.fixture
def lab(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Lab:
    return make_lab(module=SHOP, **acks)


def send(lab: Lab, *tags: str, name: str = "ordered", **more: Any) -> list[Any]:
    return [lab.send(name, "k", tag=tag, **more) for tag in tags]


@on_stages("prefork", "threads")
def test_tasks_start_as_they_were_published(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    tags = [f"{n:02}" for n in range(30)]
    results = send(lab, *tags[:10])
    for name in ("w1", "w2"):
        stage.start_worker(lab, name, 3)
    results += send(lab, *tags[10:])
    assert [result.get(timeout=90) for result in results] == tags
    assert lab.journal.tags("start") == tags
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("default order")
def test_tasks_without_an_order_start_as_they_were_published_if_one_redis_has_all(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab()
    worker = lab.start_worker("w1", 4)
    tags = [f"{n:02}" for n in range(20)]
    results = send(lab, *tags, name="wait")
    assert [result.get(timeout=60) for result in results] == tags
    assert lab.journal.tags("start") == tags
    assert worker.log.count("] received") == len(tags), "each once"


@pytest.mark.promise(
    "A call behind calls of other queues passes each of these that no worker has begun within an offer. They "
    "keep their places aside, and run when a worker of their queue comes",
    name="two queues",
    broke="explorer: the line does not know its queues; red before: it waited for seven offers",
)
def test_calls_of_a_queue_without_a_worker_are_passed_by_one_of_another_queue(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(exclusive_offer=1)
    late = send(lab, "a", "b", name="wait", options={"queue": "slow"})
    urgent = lab.send("wait", "k", tag="urgent")
    lab.start_worker("w1", 1)
    assert urgent.get(timeout=30) == "urgent"
    lab.start_worker("w2", 1, options=("-Q", "slow"))
    assert [result.get(timeout=60) for result in late] == ["a", "b"]


@pytest.mark.promise(
    "If the message of a unique call is lost, and the store has it, calls that are skipped for it let it be "
    "offered again after an offer",
    name="lost message of a unique call",
    broke="red before: each later call was skipped for it, for a day",
)
def test_a_lost_message_for_which_calls_are_skipped_is_offered_again(lab: Lab) -> None:
    lab.app.conf.exclusive_offer = lab.conf["exclusive_offer"] = 1
    first = lab.send("both", "k", tag="a")
    lab.doors.delete("lab")
    assert lab.send("both", "k", tag="a").outcome == "skipped"
    off = {"unique": None, "exclusive": None}
    foreign = Message.withheld(lab, "both", "other", tag="b", options=off)
    del foreign.content["headers"]["exclusive"]  # as of a publisher without this library
    lost = Message.withheld(lab, "both", "other", tag="b")
    lab.start_worker()
    eventually(lambda: lab.send("both", "k", tag="a") and first.ready(), "the first call")
    assert first.get(timeout=60) == "a"
    foreign.deliver()
    assert foreign.result.get(timeout=60)["skipped"]["existing_id"] == lost.id
    assert lost.result.get(timeout=60) == "b"


def test_a_call_for_a_busy_key_goes_into_the_line_and_to_no_queue(lab: Lab) -> None:
    first, second = send(lab, "a", "b")
    assert lab.doors.llen("lab") == 1
    assert lab.line("ordered", "k") == [first.id, second.id]
    lab.start_worker()
    assert second.get(timeout=60) == "b"
    assert lab.journal.tags("start") == ["a", "b"]


@pytest.mark.promise(
    "Without any worker calls add one message to the queue, however long it lasts: they make no offers, and "
    "keep their order",
    name="calls offer nothing",
    broke="red before: a call let the first ones have their next offer, and after seven step aside",
)
def test_calls_without_any_worker_fill_no_queue_and_keep_their_order(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, exclusive_offer=0.2)
    task, tags = lab.task("ordered"), [f"{n:02}" for n in range(20)]
    results = send(lab, *tags[:2])
    eventually(lambda: not task.lock_state("k").line[0].is_offered, "the end of the offer to the first")
    results += send(lab, *tags[2:])
    assert lab.doors.llen("lab") == 1
    assert lab.line("ordered", "k") == [result.id for result in results]
    lab.start_worker("w1", 2, exclusive_offer=5)
    assert [result.get(timeout=60) for result in results] == tags
    assert lab.journal.tags("start") == tags


def test_the_store_decides_the_order_of_several_producers(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, task_ignore_result=True)  # Celery leaves the sockets of each thread's backend
    assert lab.task("ordered").exclusive
    threads = [threading.Thread(target=send, args=(lab, f"{n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line = lab.line("ordered", "k")
    lab.start_worker("w1", 4)
    lab.journal.wait_for("end", 12)
    assert [event["id"] for event in lab.journal.events("start")] == line
    assert sorted(lab.journal.tags()) == sorted(f"{n}" for n in range(12))


@pytest.mark.proves("shared producer")
def test_threads_may_share_a_producer(make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = make_lab(module=SHOP, task_ignore_result=True)
    is_done, met, both = OrderedPublish._is_done, list[Any](), threading.Barrier(2, timeout=30)

    def meet(publish: OrderedPublish, captured: Any) -> Any:
        met.append(publish)
        if len(met) <= both.parties:
            both.wait()
        return is_done(publish, captured)

    monkeypatch.setattr(OrderedPublish, "_is_done", meet)
    with lab.app.connection_for_write() as connection, lab.app.amqp.Producer(connection) as producer:

        def publish(tag: str) -> None:
            lab.send("ordered", tag, tag=tag, options={"producer": producer})

        assert lab.task("ordered").exclusive
        threads = [threading.Thread(target=publish, args=(tag,)) for tag in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publish("c")
    assert len(met) == 3, "each once"
    lab.start_worker()
    lab.journal.wait_for("end", 3)
    assert sorted(lab.journal.tags("start")) == ["a", "b", "c"]


class Traced(Producer):
    """A producer of the user's, which notes what is published through it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.noted: list[str] = []

    def publish(self, *args: Any, **options: Any) -> Any:
        self.noted.append(options["headers"]["id"])
        return super().publish(*args, **options)


@pytest.mark.proves("as Celery sends it")
@pytest.mark.parametrize("way", ["connection", "producer", "publisher", "a class of its own"])
def test_a_call_has_its_place_in_line_whatever_its_caller_publishes_through(
    make_lab: Callable[..., Lab], way: str
) -> None:
    lab = make_lab(module=SHOP, task_ignore_result=True)
    send(lab, "a", "b")
    with lab.app.connection_for_write() as connection:
        made = Traced if way == "a class of its own" else lab.app.amqp.Producer
        producer = connection if way == "connection" else made(connection)
        name = "producer" if way == "a class of its own" else way
        results = send(lab, "c", "d", options={name: producer})
    assert lab.doors.llen("lab") == 1
    assert lab.line("ordered", "k")[2:] == [result.id for result in results]
    if way == "a class of its own":
        assert producer.noted == [result.id for result in results]
    lab.start_worker()
    lab.journal.wait_for("end", 4)
    assert lab.journal.tags("start") == ["a", "b", "c", "d"]


def test_the_task_of_a_killed_worker_starts_again_before_those_behind_it(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=SHOP, task_acks_late=True, exclusive_ttl=3)
    doomed = lab.start_worker("doomed", 1)
    first, *_, last = [*send(lab, "a", hold=True), *send(lab, "b", "c")]
    lab.journal.wait_for("start", tag="a")
    lab.start_worker("other", 2)
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    assert last.get(timeout=60) == "c"
    assert first.get(timeout=60) == "a"
    assert lab.journal.tags("start") == ["a", "a", "b", "c"]


def test_a_message_that_the_broker_loses_is_offered_again_and_keeps_its_place(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=SHOP, task_acks_late=True, exclusive_offer=0.02)
    results = send(lab, "a", "b")
    lab.doors.delete("lab")
    lab.start_worker()
    assert [result.get(timeout=60) for result in results] == ["a", "b"]
    assert lab.journal.tags("start") == ["a", "b"]


def test_with_a_limit_as_many_run_at_once_in_order(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    send(lab, "a", "b", name="pair", hold=True)
    lab.journal.wait_for("start", 2)
    third, fourth = send(lab, "c", "d", name="pair")
    lab.wait_for_line(2, "pair", "k")
    lab.open("b")
    assert fourth.get(timeout=60) == "d"
    assert third.get(timeout=60) == "c"
    assert lab.journal.tags("start")[2:] == ["c", "d"]
    lab.open("a")


def test_a_task_that_is_due_later_takes_its_place_when_it_is(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    send(lab, "later", options={"countdown": 1})
    assert lab.line("ordered", "k") == []
    (first,) = send(lab, "first")
    assert first.get(timeout=60) == "first"
    lab.journal.wait_for("end", tag="later")


def test_a_retry_takes_its_place_behind_waiting_tasks(lab: Lab) -> None:
    send(lab, "a", "b", name="again")
    lab.start_worker("w1", 2)
    lab.journal.wait_for("end", 4)
    assert lab.journal.tags("start") == ["a", "b", "a", "b"]


def test_canvases_and_unique_tasks_come_through(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    ordered = lab.task("ordered")
    steps = chain(ordered.si("k", tag="1"), ordered.si("k", tag="2"), ordered.si("k", tag="3"))
    members = group(ordered.si("k", tag=f"g{n}") for n in range(5))
    assert steps.apply_async().get(timeout=60) == "3"
    assert sorted(members.apply_async().get(timeout=60)) == [f"g{n}" for n in range(5)]
    (holder,) = send(lab, "holder", name="both", hold=True)
    lab.journal.wait_for("start", tag="holder")
    first, second = send(lab, "same", "same", name="both")
    assert (first.outcome, second.outcome, second.id) == ("published", "skipped", first.id)
    lab.open("holder")
    assert holder.get(timeout=60) == "holder"
    assert first.get(timeout=60) == "same"


@pytest.mark.parametrize(
    ("options", "conf"),
    [
        ({"compression": "gzip"}, {}),
        ({"priority": 3}, {}),
        ({"expires": 600}, {}),
        ({}, {"exclusive_secret": "a secret of 16 or more"}),
        ({}, {"exclusive_fast": False}),
    ],
    ids=str,
)
def test_a_message_comes_out_of_the_line_as_it_was_published(
    make_lab: Callable[..., Lab], options: dict[str, Any], conf: dict[str, Any]
) -> None:
    lab = make_lab(module=SHOP, **conf)
    results = send(lab, "a", "ü" * 1000, options=options)
    lab.start_worker()
    assert [result.get(timeout=60) for result in results] == ["a", "ü" * 1000]


@pytest.mark.proves("unsent call leaves no place")
def test_a_call_without_its_store_fails_or_is_sent_as_its_option_says(
    make_lab: Callable[..., Lab], store: RedisServer
) -> None:
    lab = make_lab(module=SHOP, exclusive_store=f"{store.url}?socket_timeout=1")
    assert lab.task("ordered").exclusive
    store.stop()
    with pytest.raises(StoreUnavailable):
        send(lab, "refused")
    (allowed,) = send(lab, "allowed", name="allowed")
    store.restart()
    lab.start_worker()
    assert allowed.get(timeout=60) == "allowed"
    assert lab.journal.tags("start") == ["allowed"]


@pytest.mark.promise(
    'With `order="published"` a call whose message is not sent leaves no place; without the store it '
    "raises, or is sent once",
    name="unsent call leaves no place",
    broke="no Remove",
)
def test_a_call_whose_message_is_not_sent_leaves_no_place(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], store: RedisServer
) -> None:
    broker = start_redis()
    lab = make_lab(
        broker.url, SHOP, exclusive_store=store.url, result_backend=store.url, task_publish_retry=False,
        broker_transport_options={"socket_connect_timeout": 1},
    )  # fmt: skip
    broker.stop()
    with pytest.raises(Exception, match=r"refused|[Cc]onnect"):
        send(lab, "a")
    assert lab.waiting("ordered", "k") == 0


def test_order_any_gives_a_free_slot_to_the_task_that_is_there(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, task_acks_late=True, exclusive_offer=600)
    lab.start_worker("w1", 2, options=("-Q", "lab"))
    send(lab, "holder", name="whoever", hold=True)
    lab.journal.wait_for("start", tag="holder")
    side = lab.start_worker("w2", 1, options=("-Q", "side"))
    send(lab, "waiting", name="whoever", options={"queue": "side"})
    lab.wait_for_line(1, "whoever", "k")
    side.stop()
    lab.open("holder")
    eventually(lambda: not lab.task("whoever").lock_state("k").holders, "the release after its body")
    (result,) = send(lab, "newcomer", name="whoever")
    assert result.get(timeout=60) == "newcomer"
    lab.start_worker("w3", 1, options=("-Q", "side"))
    lab.journal.wait_for("end", tag="waiting")
