"""RabbitMQ as broker, when something goes away: workers, connections, the broker, the store, a queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from tests.rabbit import RabbitServer
from tests.servers import RedisServer
from tests.worker.lab import Lab, eventually
from tests.worker.stage import RABBITS
from tests.worker.test_rabbit import DEADLINE, LATE, wait_for_empty
from tests.worker.versions import needs_celery

pytestmark = RABBITS[0]


def hold(lab: Lab, **options: Any) -> dict[str, Any]:
    """One body that is open at the door "holder": its start."""
    lab.send("wait", "k", tag="holder", hold=True, options=options)
    (start,) = lab.journal.wait_for("start", tag="holder")
    return start


def line_up(lab: Lab, *tags: str, **options: Any) -> list[Any]:
    """Park these, one behind the other."""
    results = []
    for place, tag in enumerate(tags, 1 + lab.waiting("wait", "k")):
        results.append(lab.send("wait", "k", tag=tag, options=options))
        lab.wait_for_line(place, "wait", "k")
    return results


@pytest.mark.promise(
    "RabbitMQ redelivers the task of a killed worker or child, and the line goes on",
    broke="no reaper; child's end unseen",
)
@pytest.mark.proves("forks")
@pytest.mark.parametrize("victim", ["worker", "child"])
def test_the_task_of_a_killed_worker_or_child_comes_back_and_the_line_goes_on(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any], victim: str
) -> None:
    lab = make_rabbit_lab(queue_type, exclusive_ttl=9 if victim == "worker" else 60, **LATE)
    doomed = lab.start_worker("w1", 2)
    killed = hold(lab)
    line_up(lab, "a", "b")
    if victim == "worker":
        lab.start_worker("w2", 2)
        doomed.kill()
    else:
        doomed.wait_accepted(killed["id"])
        os.kill(killed["pid"], signal.SIGKILL)
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    lab.journal.wait_for("end", 3)
    wait_for_empty(rabbit_server, lab)
    assert lab.journal.tags("start") == ["holder", "a", "b", "holder"]
    assert lab.journal.tags("end") == ["a", "b", "holder"]


@pytest.mark.promise(
    "On RabbitMQ a worker that gets its own running task again after a lost connection runs it once",
    broke="one token for all deliveries",
)
@needs_celery("5.7", "free processes are told from busy ones after a lost connection")
def test_a_running_task_that_its_own_worker_gets_again_after_a_lost_connection_runs_once(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any]
) -> None:
    limit = {"x-delivery-limit": 3} if queue_type["x-queue-type"] == "quorum" else {}
    lab = make_rabbit_lab({**queue_type, **limit}, **LATE)
    worker = lab.start_worker("w1", 4)
    holder = hold(lab)["id"]
    results = line_up(lab, "a")
    rabbit_server.close_connections()
    worker.wait_for_log(f"[{holder}] parked: ")
    results += line_up(lab, "b")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in results] == ["a", "b"]
    wait_for_empty(rabbit_server, lab)
    assert lab.journal.tags("start") == ["holder", "a", "b"]
    assert lab.waiting("wait", "k") == 0


@pytest.mark.promise(
    "A RabbitMQ that is stopped or killed while tasks wait loses none",
    broke="no reaper (classic, killed)",
)
@pytest.mark.parametrize(
    ("queue_type", "how"),
    [("classic", "kill"), pytest.param("quorum", "stop", marks=needs_celery("5.5", "quorum queues"))],
)
def test_a_restart_of_the_broker_loses_no_waiting_task(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: str, how: str
) -> None:
    lab = make_rabbit_lab({"x-queue-type": queue_type}, exclusive_offer=1, **LATE)
    lab.start_worker("w1", 2)
    hold(lab)
    results = line_up(lab, "a", "b", "c")
    getattr(rabbit_server, how)()
    lab.open("holder", "holder")  # its acknowledgement is lost, so it comes once more
    lab.journal.wait_for("end", tag="holder")
    rabbit_server.start()
    assert [result.get(timeout=DEADLINE) for result in results] == ["a", "b", "c"]
    wait_for_empty(rabbit_server, lab)
    assert lab.journal.most_open() == 1
    assert [tag for tag in lab.journal.tags("start") if tag != "holder"] == ["a", "b", "c"]


@pytest.mark.promise(
    "A store that is down does not use up the deliveries of a quorum queue",
    broke="requeued",
)
@needs_celery("5.5", "quorum queues")
def test_a_store_that_stays_down_does_not_use_up_the_deliveries_of_a_quorum_queue(
    make_rabbit_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], rabbit_server: RabbitServer
) -> None:
    store = start_redis(appendonly=True)
    lab = make_rabbit_lab(
        {"x-queue-type": "quorum", "x-delivery-limit": 1},
        exclusive_store=f"{store.url}?socket_timeout=1", exclusive_store_wait=0.5, **LATE,
    )  # fmt: skip
    worker = lab.start_worker("w1", 2)
    store.stop()
    result = lab.send("wait", "k", tag="a")
    given_back = f"[{result.id}] goes back to the broker"
    eventually(lambda: worker.log.count(given_back) > 3, "more deliveries than the queue allows")
    store.restart()
    assert result.get(timeout=DEADLINE) == "a"
    wait_for_empty(rabbit_server, lab)
    assert lab.journal.tags("start") == ["a"]


@pytest.mark.promise(
    "A promoted message that expires in its queue of RabbitMQ ends as REVOKED, and the line goes on",
    broke="TTL not sent; TTL 0 for what is past",
)
def test_a_promoted_message_that_expires_in_its_queue_ends_as_revoked_and_the_line_goes_on(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer
) -> None:
    lab = make_rabbit_lab({}, exclusive_offer=3, **LATE)
    lab.start_worker("w1", 2, options=("-Q", "lab"))
    parking = lab.start_worker("w2", 1, options=("-Q", "side"))
    hold(lab)
    expires = datetime.now(timezone.utc) + timedelta(seconds=6)
    (expiring,) = line_up(lab, "expiring", queue="side", expires=expires)
    (following,) = line_up(lab, "next")
    wait_for_empty(rabbit_server, lab, "side")
    parking.kill()
    lab.open("holder")
    copies = partial(rabbit_server.messages, lab.conf["broker_url"], "side")
    eventually(lambda: copies() > 0, "a promoted message that nobody consumes")
    eventually(lambda: datetime.now(timezone.utc) > expires, "its expiry")
    assert copies() > 0, "no broker drops what a worker shall see"
    lab.start_worker("w3", 1, options=("-Q", "side"))
    assert following.get(timeout=DEADLINE) == "next"
    eventually(lambda: expiring.state == "REVOKED", "the end of what has expired")
    assert lab.journal.tags("start") == ["holder", "next"]


@pytest.mark.promise(
    "On RabbitMQ a task that waits for a queue that was deleted is offered until it is back",
    broke="not mandatory; no reaper",
)
def test_a_task_whose_queue_was_deleted_is_offered_until_the_queue_is_back(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, acks: dict[str, Any]
) -> None:
    lab = make_rabbit_lab({}, exclusive_offer=1, **acks)
    worker = lab.start_worker("w1", 2, options=("-Q", "lab"))
    parking = lab.start_worker("w2", 1, options=("-Q", "side"))
    hold(lab)
    (result,) = line_up(lab, "a", queue="side")
    assert parking.stop() == 0
    rabbit_server.delete(lab.conf["broker_url"], "side")
    lab.open("holder")
    assert "NO_ROUTE" in worker.wait_for_log(f"the message of task {result.id} for lock")
    lab.start_worker("w3", 1, options=("-Q", "side"))
    assert result.get(timeout=DEADLINE) == "a"


@pytest.mark.promise(
    "On RabbitMQ a task that is revoked in line does not run, and a worker that stops leaves the line to "
    "others",
    broke="place in line not removed",
)
def test_a_task_revoked_in_line_does_not_run_and_a_worker_that_stops_leaves_the_line_to_others(
    make_rabbit_lab: Callable[..., Lab], rabbit_server: RabbitServer, queue_type: dict[str, Any],
    acks: dict[str, Any],
) -> None:  # fmt: skip
    lab = make_rabbit_lab(queue_type, **acks)
    stopping, other = lab.start_worker("w1", 2), lab.start_worker("w2", 2, options=("-Q", "side"))
    hold(lab)
    revoked, *results = line_up(lab, "revoked", "a", "b", queue="side")
    lab.app.control.revoke(revoked.id)
    other.wait_for_log(f"{revoked.id}")
    stopping.process.send_signal(signal.SIGTERM)
    stopping.wait_for_log("Warm shutdown")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in results] == ["a", "b"]
    assert stopping.process.wait(DEADLINE) == 0
    wait_for_empty(rabbit_server, lab, "side")
    assert revoked.state == "REVOKED"
    assert lab.journal.tags("start") == ["holder", "a", "b"]
