"""One publish that several queues get: each queue's copy is a task of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu import Exchange, Queue

from celery_exclusive import lock
from tests.rabbit import RabbitServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import wait_for_lines
from tests.worker.stage import RABBITS
from tests.worker.versions import needs_celery

LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
SHOP = "tests.worker.shop_broadcast"
BROKERS = ["redis", pytest.param("rabbitmq", marks=RABBITS[0])]
# kombu publishes to a fanout exchange on Redis only where that is declared, which Celery leaves to its user.
NEWS = {"queue": "news", "declare": [Exchange("news", "fanout")]}
SIDES = {"exchange": "by-topic", "routing_key": "sides.all"}
ENDS = {"exchange": "by-key", "routing_key": "ends"}
TWO_QUEUES = [
    pytest.param("rabbitmq", ("left", "right"), SIDES, marks=RABBITS[0], id="topic-rabbitmq"),
    pytest.param("redis", ("up", "down"), ENDS, id="direct-redis"),
]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Lab]:
    """Makes a lab of these tasks: `make("rabbitmq")`."""

    def make(broker: str, **conf: Any) -> Lab:
        settings = {"module": SHOP, **LATE, **conf}
        make_lab: Callable[..., Lab] = request.getfixturevalue("make_lab")
        if broker == "rabbitmq":
            url = request.getfixturevalue("rabbit_url")
            return make_lab(broker_url=url, broker_transport_options={}, **settings)
        if broker == "filesystem":
            messages = tmp_path / "messages"
            messages.mkdir()
            folders = {"data_folder_in": str(messages), "data_folder_out": str(messages)}
            options = {**folders, "control_folder": str(tmp_path / "control")}
            settings = {"broker_url": "filesystem://", "broker_transport_options": options, **settings}
            return make_lab(worker_enable_remote_control=False, **settings)
        return make_lab(**settings)

    return make


def start(lab: Lab, *queues: str) -> list[Worker]:
    """One worker for each of these queues."""
    reads_what_another_writes = lab.conf["broker_url"].startswith("filesystem")  # kombu, of bindings
    workers = [
        lab.start_worker(f"w{number}", 2, options=("-Q", queue), ready=reads_what_another_writes)
        for number, queue in enumerate(queues, 1)
    ]
    for worker in workers:
        worker.wait_ready()
    return workers


def wait_for_waiting(lab: Lab, *workers: Worker) -> None:
    """Wait until one of these workers has a copy that found its key taken."""
    eventually(
        lambda: any(" parked: " in worker.log or "] rescheduled in" in worker.log for worker in workers),
        "a copy that waits",
    )


def where(lab: Lab, **details: Any) -> list[str]:
    """The workers of the bodies, in the order in which they began."""
    return [event["worker"] for event in lab.journal.events("body", **details)]


@pytest.mark.promise(
    "Each queue's copy of a broadcast runs once, one at a time, and its body sees where it was published to",
    name="broadcast",
)
@pytest.mark.parametrize("broker", [*BROKERS, "filesystem"])
def test_a_broadcast_runs_once_on_each_worker_one_at_a_time(make: Callable[..., Lab], broker: str) -> None:
    lab = make(broker)
    workers = start(lab, "news", "news")
    lab.send("reload", "k", tag="a", hold=True, options=NEWS)
    lab.journal.wait_for("start")
    wait_for_waiting(lab, *workers)
    assert len(lab.journal.events("start")) == 1
    lab.open("a")
    lab.journal.wait_for("start", 2)
    lab.open("a")
    lab.journal.wait_for("end", 2)
    assert sorted(where(lab)) == ["w1@lab", "w2@lab"]
    assert lab.journal.most_open(key="k") == 1
    came = [event["came"] for event in lab.journal.events("body")]
    assert came == [["news", came[0][1]]] * 2
    eventually(lambda: not lab.task("reload").lock_state("k").holders, "the release of the key")
    assert lab.waiting("reload", "k") == 0


@pytest.mark.promise(
    "On Redis fanout a copy of a broadcast that waits is in no worker slot and in no line, and its worker "
    "delivers it again, in every pool",
)
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_copy_that_waits_on_redis_uses_no_slot_and_runs_with_early_acknowledgement_too(
    make: Callable[..., Lab], pool: str
) -> None:
    lab = make("redis", task_acks_late=False, task_reject_on_worker_lost=False)
    worker = lab.start_worker("w1", 1, pool=pool, options=("-Q", "lab,news"))
    other = lab.start_worker("w2", 1, options=("-Q", "side"))
    lab.send("reload", "k", tag="holder", hold=True, options={"queue": "side"})
    lab.journal.wait_for("start", tag="holder")
    lab.send("reload", "k", tag="a", options=NEWS)
    wait_for_waiting(lab, worker)
    assert lab.send("reload", "other", tag="b", options={"queue": "lab"}).get(timeout=60) == "b"
    assert lab.waiting("reload", "k") == 0
    lab.open("holder")
    lab.journal.wait_for("end", tag="a")
    assert where(lab, tag="a") == ["w1@lab"]
    assert "Traceback" not in worker.log + other.log
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")


@pytest.mark.proves("broadcast")
@pytest.mark.parametrize(("broker", "queues", "route"), TWO_QUEUES)
@pytest.mark.parametrize("together", [False, True], ids=["two-workers", "one-worker"])
def test_each_of_two_queues_runs_its_copy_of_one_publish(
    make: Callable[..., Lab], broker: str, queues: tuple[str, str], route: dict[str, str], together: bool
) -> None:
    lab = make(broker)
    workers = start(lab, ",".join(queues)) if together else start(lab, *queues)
    lab.send("reload", "k", tag="a", hold=True, options=route)
    lab.journal.wait_for("start")
    lab.wait_for_line(1, "reload", "k")
    lab.open("a", "a")
    lab.journal.wait_for("end", 2)
    assert sorted(where(lab)) == (["w1@lab", "w1@lab"] if together else ["w1@lab", "w2@lab"])
    assert lab.journal.most_open(key="k") == 1
    came = [event["came"] for event in lab.journal.events("body")]
    assert came == [[route["exchange"], route["routing_key"]]] * 2
    eventually(lambda: not lab.task("reload").lock_state("k").holders, "the release of the key")
    assert lab.waiting("reload", "k") == 0
    assert all("dropped: another copy" not in worker.log for worker in workers)


@pytest.mark.promise(
    "A copy of a broadcast that is delivered again stands behind its own run alone; a killed worker's copy "
    "runs again, the other queue's once",
    name="broadcast, second delivery",
)
@RABBITS[0]
@needs_celery("5.7", "a message after a lost connection that goes to a free process")
def test_a_redelivered_copy_stands_behind_its_own_run_and_not_behind_the_run_of_another_queue(
    make: Callable[..., Lab], rabbit_server: RabbitServer
) -> None:
    lab = make("rabbitmq")
    workers = start(lab, "left", "right")
    lab.send("reload", "k", tag="a", hold=True, options=SIDES)
    lab.journal.wait_for("start")
    lab.wait_for_line(1, "reload", "k")
    rabbit_server.close_connections()
    eventually(lambda: any("behind its own run" in worker.log for worker in workers), "the redelivered copy")
    lab.open("a", "a", "a")
    lab.journal.wait_for("end", 2)
    eventually(lambda: not lab.task("reload").lock_state("k").holders, "the release of the key")
    for queue in ("left", "right"):
        eventually(
            lambda queue=queue: rabbit_server.messages(lab.conf["broker_url"], queue) == 0, f"{queue} empty"
        )
    assert sorted(where(lab)) == ["w1@lab", "w2@lab"]


@pytest.mark.proves("broadcast, second delivery")
@RABBITS[0]
def test_when_a_worker_is_killed_its_queues_copy_runs_again_and_the_others_once(
    make: Callable[..., Lab],
) -> None:
    lab = make("rabbitmq", exclusive_ttl=3)
    workers = dict(zip(("w1@lab", "w2@lab"), start(lab, "left", "right"), strict=True))
    lab.send("reload", "k", tag="a", hold=True, options=SIDES)
    lab.journal.wait_for("start")
    lab.wait_for_line(1, "reload", "k")
    first = where(lab)[0]
    (other,) = workers.keys() - {first}
    workers[first].kill()
    lab.journal.wait_for("start", 2)
    lab.start_worker("w3", 2, options=("-Q", "left" if first == "w1@lab" else "right"))
    lab.open("a", "a")
    lab.journal.wait_for("start", 3)
    lab.journal.wait_for("end", 2)
    assert where(lab) == [first, other, "w3@lab"]


@pytest.mark.promise(
    "A copy of a broadcast whose queue was deleted with its worker leaves the line, and the next one runs",
)
@RABBITS[0]
def test_a_copy_whose_queue_went_with_its_worker_leaves_the_line_to_the_others(
    make: Callable[..., Lab],
) -> None:
    lab = make("rabbitmq", exclusive_offer=60)
    workers = {"w1@lab": lab.start_worker("w1", 2, options=("-Q", "news,lab"))}
    workers["w2@lab"] = lab.start_worker("w2", 2, options=("-Q", "news,lab"))
    lab.send("reload", "k", tag="a", hold=True, options=NEWS)
    lab.journal.wait_for("start")
    lab.wait_for_line(1, "reload", "k")
    first = where(lab)[0]
    (other,) = workers.keys() - {first}
    workers[other].kill()
    after = lab.send("reload", "k", tag="after", options={"queue": "lab"})
    lab.wait_for_line(2, "reload", "k")
    lab.open("a")
    assert after.get(timeout=50) == "after"
    workers[first].wait_for_log("was deleted with its worker")
    assert where(lab, tag="a") == [first]
    assert lab.waiting("reload", "k") == 0


@pytest.mark.promise(
    "A retry of a broadcast's copy that waited goes where its publisher had sent it",
    broke="the request not restored",
)
@pytest.mark.parametrize(("broker", "queues", "route"), TWO_QUEUES)
def test_the_retry_of_a_copy_that_waited_goes_where_its_publisher_had_sent_it(
    make: Callable[..., Lab], broker: str, queues: tuple[str, str], route: dict[str, str]
) -> None:
    lab = make(broker)
    start(lab, *queues)
    lab.send("again", "k", tag="holder", hold=True, options={"queue": Queue(queues[0])})
    lab.journal.wait_for("start", tag="holder")
    lab.send("again", "k", tag="a", worker="w2@lab", options=route)
    lab.wait_for_line(2, "again", "k")
    lab.open("holder")
    lab.journal.wait_for("end", 4, tag="a")
    bodies = lab.journal.events("body", tag="a")
    assert [event["came"] for event in bodies] == [[route["exchange"], route["routing_key"]]] * 4
    assert sorted((event["worker"], event["retries"]) for event in bodies) == [
        ("w1@lab", 0),
        ("w1@lab", 1),
        ("w2@lab", 0),
        ("w2@lab", 1),
    ]


@pytest.mark.promise(
    "A second copy of a broadcast that shall not wait is skipped",
    broke="the other copy taken for an earlier run of its own",
)
@pytest.mark.parametrize("broker", BROKERS)
def test_a_copy_that_shall_not_wait_is_skipped_for_the_copy_of_another_worker(
    make: Callable[..., Lab], broker: str
) -> None:
    lab = make(broker)
    workers = start(lab, "news", "news")
    lab.send("skipped", "k", tag="a", hold=True, options=NEWS)
    lab.journal.wait_for("start")
    eventually(lambda: any("] skipped: " in worker.log for worker in workers), "the copy that is skipped")
    lab.open("a")
    lab.journal.wait_for("end")
    assert len(where(lab)) == 1


@pytest.mark.promise(
    "A unique broadcast is published once, all its copies run, and none is a duplicate of another",
    name="unique broadcast",
    broke="it waits for the copy that has the key",
)
@pytest.mark.parametrize("broker", BROKERS)
def test_the_copies_of_a_unique_broadcast_run_side_by_side_and_none_is_a_duplicate(
    make: Callable[..., Lab], broker: str
) -> None:
    lab = make(broker)
    start(lab, "news", "news")
    first = lab.send("once", "k", tag="a", hold=True, options=NEWS)
    lab.journal.wait_for("start", 2, tag="a")
    second = lab.send("once", "k", tag="b", options=NEWS)
    assert (second.outcome, second.existing_id) == ("skipped", first.id)
    lab.open("a", "a")
    lab.journal.wait_for("end", 2, tag="a")
    eventually(lambda: not lab.task("once").lock_state("k").holders, "the release of the key")
    assert lab.send("once", "k", tag="c", options=NEWS).outcome == "published"
    lab.journal.wait_for("end", 2, tag="c")
    assert sorted(where(lab)) == ["w1@lab"] * 2 + ["w2@lab"] * 2


@pytest.mark.proves("unique broadcast")
@pytest.mark.parametrize("broker", BROKERS)
def test_a_late_copy_of_a_unique_broadcast_runs_though_the_next_publish_has_the_key(
    make: Callable[..., Lab], broker: str
) -> None:
    lab = make(broker)
    lab.start_worker("w1", 2, options=("-Q", "news"))
    lab.start_worker("w2", 1, options=("-Q", "news,lab"))
    lab.send("reload", "k", tag="busy", hold=True, options={"queue": "lab"})
    lab.journal.wait_for("start", tag="busy")
    lab.send("once", "k", tag="a", options=NEWS)
    lab.journal.wait_for("end", tag="a")
    eventually(lambda: not lab.task("once").lock_state("k").holders, "the release of the key")
    lab.send("once", "k", tag="b", hold=True, options=NEWS)
    lab.journal.wait_for("start", tag="b")
    lab.open("busy")
    lab.journal.wait_for("end", 2, tag="a")
    lab.open("b", "b")
    lab.journal.wait_for("end", 2, tag="b")
    assert [where(lab, tag=tag) for tag in ("a", "b")] == [["w1@lab", "w2@lab"]] * 2


@pytest.mark.proves("unique broadcast")
@pytest.mark.parametrize("broker", BROKERS)
def test_a_unique_broadcast_with_a_lock_runs_once_on_each_worker_one_at_a_time(
    make: Callable[..., Lab], broker: str
) -> None:
    lab = make(broker)
    workers = start(lab, "news", "news")
    lab.send("once_at_a_time", "k", tag="a", hold=True, options=NEWS)
    lab.journal.wait_for("start")
    wait_for_waiting(lab, *workers)
    lab.open("a", "a")
    lab.journal.wait_for("end", 2)
    assert sorted(where(lab)) == ["w1@lab", "w2@lab"]
    assert lab.journal.most_open(key="k") == 1
    eventually(lambda: not lab.task("once_at_a_time").lock_state("k").holders, "the release of the keys")
    assert lab.task("once_at_a_time").lock_state("k").unique_holder is None


@pytest.mark.promise(
    "A copy of a broadcast that is skipped before its body begins releases the unique key of its publish",
    broke="red before: later calls were skipped for `queued_ttl`",
)
@pytest.mark.parametrize(("broker", "queues", "route"), TWO_QUEUES)
def test_a_routed_copy_that_is_skipped_releases_the_unique_key_of_its_publish(
    make: Callable[..., Lab], broker: str, queues: tuple[str, str], route: dict[str, str]
) -> None:
    lab = make(broker)
    (worker,) = start(lab, ",".join(queues))
    with lock("busy", app=lab.app):
        skipped = lab.send("once_unless_busy", "k", tag="a", options=route)
        assert "skipped" in skipped.get(timeout=60)
        wait_for_lines(f"[{skipped.id}] skipped: ", 2, worker)
    eventually(
        lambda: not lab.task("once_unless_busy").lock_state("k").unique_holder, "the release of the key"
    )
    assert lab.send("once_unless_busy", "k", tag="b", options=route).outcome == "published"
    lab.journal.wait_for("end", tag="b")
