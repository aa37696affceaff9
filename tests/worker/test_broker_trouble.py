"""The broker goes away under a task or delivers it again, or its child is lost: the key goes on.

A task runs again where plain Celery would run it again, in its turn, and nowhere else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import Exclusive
from tests.rabbit import RabbitServer
from tests.servers import RedisServer
from tests.worker.journal import Event
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import Message, wait_for_lines
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import leave_out_before, needs_celery

DEADLINE = 90
PARKED = "parked: "
SHOP = "tests.worker.shop"
ARRIVED = {"exclusive": Exclusive("key", order="arrived")}


def visible_for(seconds: float) -> dict[str, Any]:
    """After so long a Redis broker delivers again what was not acknowledged."""
    return {
        "broker_transport_options": {
            "visibility_timeout": seconds, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
        }
    }  # fmt: skip


def send(lab: Lab, tag: str, *, hold: bool = False, **options: Any) -> Any:
    """The first run of a task with `hold` stays open until the key's door is opened."""
    return lab.send("end", "k", tag=tag, hold=hold, options=options)


def hold(lab: Lab, tag: str = "holder", **options: Any) -> tuple[Any, Event]:
    """A body that is open: its result, and its start."""
    result = send(lab, tag, hold=True, **options)
    (start,) = lab.journal.wait_for("start", tag=tag)
    return result, start


def line_up(lab: Lab, *tags: str, hold: bool = False, **options: Any) -> list[Any]:
    """Park these, one behind the other."""
    results = []
    for tag in tags:
        results.append(send(lab, tag, hold=hold, **options))
        lab.wait_until_in_line(results[-1].id, "end", "k")
    return results


def starts(lab: Lab) -> list[str]:
    """Who has run, in order, and never one beside another."""
    assert not lab.journal.events("beside")
    return lab.journal.tags("start", key="k")


def cut(lab: Lab, server: RabbitServer | None) -> int:
    """Cut the connection over which workers get their messages: when that was."""
    at = time.monotonic_ns()
    if server:
        server.close_connections()
    else:
        eventually(lambda: cut_redis(lab), "a worker that asks for messages")
    return at


def cut_redis(lab: Lab) -> int:
    asking = [client["id"] for client in lab.doors.client_list() if client["cmd"] == "brpop"]
    return sum(lab.doors.client_kill_filter(_id=id) for id in asking)


@pytest.fixture
def rabbit(stage: Stage, request: pytest.FixtureRequest) -> RabbitServer | None:
    """The stage's broker, if it is RabbitMQ."""
    return request.getfixturevalue("rabbit_server") if stage.broker == "rabbitmq" else None


@pytest.mark.promise(
    "A body outlives a lost connection to the broker, and its copy runs neither beside it nor after it, "
    "with and without `worker_cancel_long_running_tasks_on_connection_loss`",
    name="lost connection to the broker",
    broke="one token for all deliveries; cut off is done",
)
@pytest.mark.each_part
@needs_celery("5.7", "free processes are told from busy ones after a lost connection")
@on_stages("prefork")
def test_a_body_outlives_a_lost_connection_and_its_copy_runs_neither_beside_it_nor_after_it(
    stage: Stage, rabbit: RabbitServer | None
) -> None:
    outlive(stage, rabbit)


@pytest.mark.proves("lost connection to the broker")
@on_stages("threads", "gevent", lates=(True,))
def test_a_body_in_a_pool_of_one_process_outlives_a_lost_connection(
    stage: Stage, rabbit: RabbitServer | None
) -> None:
    if (stage.pool, stage.broker) == ("threads", "rabbitmq"):
        leave_out_before("5.7", "threads that acknowledge after a lost connection")
    # It would be restored in the thread that acknowledges, while another one reads: Celery may then hang.
    outlive(stage, rabbit, worker_enable_prefetch_count_reduction=False)


def outlive(stage: Stage, rabbit: RabbitServer | None, **conf: Any) -> None:
    lab = stage.make_lab(exclusive_ttl=600, **conf)
    worker = stage.start_worker(lab, slots=3)
    holder, _ = hold(lab)
    (following,) = line_up(lab, "next")
    cut(lab, rabbit)
    if stage.late:
        wait_for_lines(f"[{holder.id}] {PARKED}", 1, worker)
    else:
        worker.wait_for_log("Connection to broker lost")
        line_up(lab, "last")  # it has connected again
    assert not lab.journal.events("end")
    lab.open("k")
    assert (holder.get(timeout=DEADLINE), following.get(timeout=DEADLINE)) == (None, None)
    stage.assert_nothing_is_left(lab)
    assert starts(lab) == (["holder", "next"] if stage.late else ["holder", "next", "last"])
    (end,), (start,) = lab.journal.events("end", tag="holder"), lab.journal.events("start", tag="next")
    stage.note("broker-lost", end["at"], start["at"])


@pytest.mark.proves("lost connection to the broker")
@on_stages("prefork", "gevent", lates=(True,))
def test_a_body_that_celery_cancels_since_its_connection_is_lost_runs_again_in_its_turn(
    stage: Stage, rabbit: RabbitServer | None
) -> None:
    if stage.pool == "gevent":
        leave_out_before("5.5", "greenlets that are killed")
    lab = stage.make_lab(exclusive_ttl=600, worker_cancel_long_running_tasks_on_connection_loss=True)
    stage.start_worker(lab, slots=3)
    holder, _ = hold(lab)
    (following,) = line_up(lab, "next")
    since = cut(lab, rabbit)
    _, start, *_ = lab.journal.wait_for("start", 2, key="k")
    stage.note("broker-lost-cancelled", since, start["at"])
    for tag, count in (("holder", 2), ("next", 1)):
        lab.journal.wait_for("end", count, tag=tag)
    stage.assert_nothing_is_left(lab)
    keeps_place = stage.broker == "redis"  # which has the locks, too: calls start as they were published
    assert starts(lab) == (["holder", "holder", "next"] if keeps_place else ["holder", "next", "holder"])
    assert (holder.state, following.state) == ("SUCCESS", "SUCCESS")


@pytest.mark.promise(
    "The key of a child that is killed while the broker is unreachable is free after `ttl`",
    broke="`is_gone` always false",
)
@on_stages("prefork", lates=(True,))
def test_the_key_of_a_child_that_is_killed_while_the_broker_is_down_is_free_after_ttl(
    stage: Stage, rabbit: RabbitServer | None, start_redis: Callable[..., RedisServer], redis_url: str
) -> None:
    broker: Any = rabbit or start_redis(appendonly=True)
    conf = {} if rabbit else {"broker_url": broker.url, **visible_for(5)}
    lab = stage.make_lab(exclusive_ttl=9, exclusive_store=redis_url, **conf)
    worker = stage.start_worker(lab)
    holder, start = hold(lab)
    (following,) = line_up(lab, "next")
    worker.wait_accepted(holder.id)
    broker.stop()
    worker.wait_for_log("Connection to broker lost")
    os.kill(start["pid"], signal.SIGKILL)
    killed = time.monotonic_ns()
    eventually(lambda: not lab.task("end").lock_state("k").is_running, "a free key")
    stage.note("child-killed-broker-away", killed, time.monotonic_ns())
    broker.start()
    if stage.broker == "redis":
        stage.start_worker(lab, "w2")  # kombu has ended the other: it had messages to give back
    following.get(timeout=DEADLINE)
    holder.get(timeout=DEADLINE)
    lab.wait_for_line(0, "end", "k")
    assert starts(lab) == ["holder", "next", "holder"]


@pytest.mark.proves("redelivered while running")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_body_of_three_visibility_timeouts_runs_once_though_plain_celery_starts_it_again_each_time(
    stage: Stage,
) -> None:
    lab = stage.make_lab(worker_deduplicate_successful_tasks=True, **visible_for(1))
    workers = [stage.start_worker(lab, name, 5) for name in ("w1", "w2")]
    holder, _ = hold(lab)
    three, plain = (lab.app.tasks[f"{SHOP}.{name}"] for name in ("three", "plain"))
    copied = three.delay("t", "three", hold=True)
    line_up(lab, "next", "last")
    for result in (holder, copied):  # the second has free slots beside its own run
        wait_for_lines(f"[{result.id}] {PARKED}", 1, *workers)
    plain.delay("plain", hold=True)
    lab.journal.wait_for("start", 4, tag="plain")
    lab.open("k", "three", *["plain"] * 30)
    lab.journal.wait_for("end", tag="last")
    lab.journal.wait_for("end", tag="three")
    stage.assert_nothing_is_left(lab)
    assert starts(lab) == ["holder", "next", "last"]
    assert lab.journal.tags("start", key="t") == ["three"]
    assert holder.state == "SUCCESS"


@pytest.mark.promise(
    "Celery's `worker_deduplicate_successful_tasks` recognises a task that was delivered again, also one "
    "that has waited in line",
    broke="mark forgotten in line; the mark of a copy whose message is in line already, too",
)
@pytest.mark.proves("redelivered message in line")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_celery_recognises_a_successful_task_delivered_again_also_when_it_has_waited_in_line(
    stage: Stage,
) -> None:
    lab = stage.make_lab(worker_deduplicate_successful_tasks=True)
    message = Message.withheld(lab, "end", "k", tag="once", options=ARRIVED)
    worker = stage.start_worker(lab)
    message.deliver()
    lab.journal.wait_for("end", tag="once")
    eventually(lambda: not lab.task("end").lock_state("k").is_running, "the end of its lease")
    hold(lab)
    message.deliver()
    lab.wait_for_line(1, "end", "k")
    message.deliver_again()  # its copy in line has to know that, too
    wait_for_lines(f"[{message.id}] {PARKED}", 2, worker)
    line_up(lab, "next")
    lab.open("k")
    lab.journal.wait_for("end", tag="next")
    wait_for_lines(f"[{message.id}] Task already completed successfully", 1, worker)
    stage.assert_nothing_is_left(lab)
    assert starts(lab) == ["once", "holder", "next"]


LOST: dict[str, tuple[dict[str, Any], bool]] = {
    "acknowledged": ({"task_reject_on_worker_lost": False}, False),
    "given back": ({"task_reject_on_worker_lost": True}, True),
    "rejected": ({"task_reject_on_worker_lost": False, "task_acks_on_failure_or_timeout": False}, False),
    "given back, not acknowledged": (
        {"task_reject_on_worker_lost": True, "task_acks_on_failure_or_timeout": False}, True,
    ),
}  # fmt: skip
"""What Celery does with the message of a lost child, by its settings, and whether it runs again."""


@pytest.mark.promise(
    "`task_reject_on_worker_lost`, `task_acks_on_failure_or_timeout` and `task_retry_on_worker_lost` (5.7) "
    "act as in plain Celery, each run in its turn: in the place of its call, if calls start as published",
    name="settings for lost workers",
    broke=(
        "parent does not see the end; a requeued message is done; cut off is done, what a signal ends in "
        "the child too"
    ),
)
@pytest.mark.parametrize("what", LOST)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_the_message_of_a_killed_child_runs_again_only_if_celery_requeues_it(stage: Stage, what: str) -> None:
    settings, again = LOST[what]
    lab = stage.make_lab(exclusive_ttl=600, **settings)
    holder = kill_one_that_has_waited(lab, stage.start_worker(lab))
    lab.journal.wait_for("end", tag="next")
    if again:
        lab.journal.wait_for("end", tag="holder")
    stage.assert_nothing_is_left(lab)
    eventually(lambda: holder.state == ("SUCCESS" if again else "FAILURE"), "its final state")
    assert starts(lab) == ["first", "holder", *["holder"][:again], "next"]


@pytest.mark.proves("settings for lost workers")
@needs_celery("5.7", "task_retry_on_worker_lost")
@on_stages("prefork")
def test_the_retry_that_celery_publishes_for_a_lost_child_waits_its_turn_and_runs(stage: Stage) -> None:
    lab = stage.make_lab(
        exclusive_ttl=600,
        task_retry_on_worker_lost=True,
        task_annotations={"*": {"default_retry_delay": 0}},
    )
    holder = kill_one_that_has_waited(lab, stage.start_worker(lab))
    lab.journal.wait_for("end", tag="holder")
    assert holder.get(timeout=DEADLINE) is None
    stage.assert_nothing_is_left(lab)
    assert starts(lab) == ["first", "holder", "next", "holder"]


def kill_one_that_has_waited(lab: Lab, worker: Worker) -> Any:
    """Behind it is "next". Its end may leave a tombstone, which is not for a new attempt."""
    hold(lab, "first")
    (holder,) = line_up(lab, "holder", hold=True)
    lab.open("k")
    (start,) = lab.journal.wait_for("start", tag="holder")
    line_up(lab, "next")
    worker.wait_accepted(holder.id)
    os.kill(start["pid"], signal.SIGKILL)
    return holder


@pytest.mark.proves("settings for lost workers")
@needs_celery("5.5", "task_acks_on_failure_or_timeout that is heeded for a hard time limit")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_task_over_its_time_limit_that_is_not_acknowledged_runs_again_in_its_turn(stage: Stage) -> None:
    lab = stage.make_lab(exclusive_ttl=600, task_acks_on_failure_or_timeout=False)
    stage.start_worker(lab)
    hold(lab, "first")
    lab.send("end", "k", tag="holder", how="hard-limit-stubborn", options={"time_limit": 4})
    lab.wait_for_line(1, "end", "k")
    line_up(lab, "next")
    lab.open("k")
    _, again = lab.journal.wait_for("start", 2, tag="holder")
    lab.journal.wait_for("end", tag="holder", pid=again["pid"])  # the first may be killed before it tells
    lab.journal.wait_for("end", tag="next")
    stage.assert_nothing_is_left(lab)
    assert starts(lab) == ["first", "holder", "holder", "next"]
