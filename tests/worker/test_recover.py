"""A worker that dies with a late task: the store has its message, and publishes it when the lease is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_exclusive import Exclusive
from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import Message, wait_for_lines
from tests.worker.stage import Stage, on_stages

TTL = 3


@pytest.fixture
def late(make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker hides the messages of a dead worker for an hour, as Celery's default is."""
    return lambda **conf: make_lab(
        **{
            "task_acks_late": True,
            "exclusive_ttl": TTL,
            "broker_transport_options": {"visibility_timeout": 3600},
            **conf,
        }
    )


def kept(lab: Lab, store: RedisServer | None = None) -> list[bytes]:
    """The messages that the store has."""
    with store.client() if store else redis.Redis.from_url(lab.url) as client:
        return [text for name in client.scan_iter("cx2:{0}:m:*") for text in client.hvals(name)]


def start_pair(lab: Lab, task: str = "wait", **arguments: Any) -> tuple[Any, Worker, Worker]:
    """Start a task on a worker that is to die, and another worker."""
    doomed = lab.start_worker("doomed", 1, worker_prefetch_multiplier=1)
    result = lab.send(task, "k", tag="a", hold=True, **arguments)
    lab.journal.wait_for("start", tag="a")
    return result, doomed, lab.start_worker("other", 2)


@pytest.mark.promise(
    "The task of a killed worker (late, Redis) runs again after `ttl`, in every pool, also if it had "
    "waited, with a body of 1 MB, and where conflicts are skipped. The broker's own copy is dropped, or "
    "waits behind the new run",
    name="recovery",
    broke="explorer: a run that dies is not kept",
)
@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_a_task_whose_worker_is_killed_runs_again_when_its_lease_is_over(stage: Stage) -> None:
    lab = stage.make_lab(exclusive_ttl=TTL, module="tests.worker.shop", broker_transport_options={})
    doomed = stage.start_worker(lab, "doomed")
    result = lab.send("wait", "k", tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    stage.start_worker(lab, "other")
    killed = time.monotonic_ns()
    doomed.kill()
    first, second = lab.journal.wait_for("start", 2, tag="a")
    stage.note("worker-killed-again", killed, second["at"])
    assert first["fence"] < second["fence"]
    lab.open("a")
    assert result.get(timeout=60) == "a"
    eventually(lambda: not kept(lab), "no message in the store")


@pytest.mark.proves("recovery")
def test_the_broker_s_own_copy_of_a_recovered_task_is_dropped(late: Callable[..., Lab]) -> None:
    timeouts = {"visibility_timeout": 12, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    lab = late(broker_transport_options=timeouts)
    result, doomed, other = start_pair(lab)
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    assert result.get(timeout=60) == "a"
    other.wait_for_log("dropped: another copy")
    assert lab.journal.tags("start") == ["a", "a"]
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")


def test_a_recovered_task_is_a_redelivered_one_for_its_body(late: Callable[..., Lab]) -> None:
    lab = late()
    start_pair(lab)
    (text,) = kept(lab)
    assert b'"redelivered": true' in text


@pytest.mark.proves("recovery")
def test_a_recovered_task_is_not_skipped_for_the_sake_of_its_own_dead_run(late: Callable[..., Lab]) -> None:
    lab = late()
    result, doomed, _ = start_pair(lab, "skip")
    doomed.kill()
    duplicate = lab.send("skip", "k", tag="b")
    assert duplicate.get(timeout=60)["skipped"]["existing_id"] == result.id
    lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    assert result.get(timeout=60) == "a"


@pytest.mark.proves("recovery")
def test_a_task_that_had_waited_is_recovered_too(late: Callable[..., Lab]) -> None:
    lab = late()
    holder, doomed, _ = start_pair(lab)
    waiting = lab.send("wait", "k", tag="b", hold=True)
    lab.wait_for_line(1, "wait", "k")
    doomed.kill()
    lab.open("a", "b")
    assert waiting.get(timeout=60) == "b"
    assert holder.get(timeout=60) == "a"


@pytest.mark.promise(
    "The store keeps no message of a run with early acknowledgement, on RabbitMQ, or where that is "
    'switched off (and `order` is "arrived"), nor of one whose child was killed for good. What an option '
    "says goes before the setting",
    name="no kept message",
)
@pytest.mark.parametrize("conf", [{"task_acks_late": False}, {"exclusive_recover": False}])
def test_with_early_acknowledgement_or_switched_off_the_store_keeps_no_message_of_a_run(
    late: Callable[..., Lab], conf: dict[str, Any]
) -> None:
    lab = late(module="tests.worker.shop_arrived", **conf)
    start_pair(lab)
    assert kept(lab) == []


@pytest.mark.promise(
    'Where that is switched off, a task with `order="published"` whose worker dies runs again all the same: '
    "it keeps its place in line until it ends",
    broke="no copy behind the run",
)
def test_a_task_that_was_published_in_order_runs_again_also_if_recovery_is_switched_off(
    late: Callable[..., Lab],
) -> None:
    lab = late(exclusive_recover=False)
    result, doomed, _ = start_pair(lab)
    later = lab.send("wait", "k", tag="b")
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="a")
    lab.open("a")
    assert [result.get(timeout=60), later.get(timeout=60)] == ["a", "b"]
    assert lab.journal.tags("start") == ["a", "a", "b"]


@pytest.mark.proves("no kept message")
@pytest.mark.parametrize("recover", [True, False])
def test_recover_of_an_option_goes_before_the_setting(late: Callable[..., Lab], recover: bool) -> None:
    lab = late(exclusive_recover=not recover)
    lab.start_worker("only", 1)
    option = {"exclusive": Exclusive("key", recover=recover, order="arrived")}
    result = lab.send("wait", "k", tag="a", hold=True, options=option)
    lab.journal.wait_for("start", tag="a")
    assert len(kept(lab)) == recover
    lab.open("a")
    assert result.get(timeout=60) == "a"


@pytest.mark.proves("no kept message")
@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
@pytest.mark.parametrize("setting", [None, True])
def test_rabbitmq_redelivers_by_itself_so_its_messages_are_kept_only_if_that_is_wanted(
    stage: Stage, setting: bool | None
) -> None:
    lab = stage.make_lab(module="tests.worker.shop", exclusive_recover=setting)
    stage.start_worker(lab)
    result = lab.send("wait", "k", tag="a", hold=True)
    lab.journal.wait_for("start", tag="a")
    assert len(kept(lab)) == bool(setting)
    lab.open("a")
    assert result.get(timeout=60) == "a"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("no kept message")
def test_a_killed_child_ends_its_task_as_in_celery_and_its_message_is_gone(late: Callable[..., Lab]) -> None:
    lab = late(exclusive_ttl=600)
    result, _, _ = start_pair(lab)
    (first,) = lab.journal.events("start", tag="a")
    os.kill(first["pid"], signal.SIGKILL)
    with pytest.raises(Exception, match="Worker exited prematurely"):
        result.get(timeout=60)
    eventually(lambda: not kept(lab), "no message in the store")
    assert lab.send("wait", "k", tag="after").get(timeout=60) == "after"
    assert lab.journal.tags("start") == ["a", "after"]


@pytest.mark.promise(
    "A living run keeps its lease over an outage of the store that is longer than its `ttl`, and its task "
    "does not run beside it",
    name="living run over an outage",
    broke=(
        "explorer: a sweep after an outage does not wait for living runs; any operation ends a lease with "
        "a copy"
    ),
)
def test_a_living_run_keeps_its_lease_over_an_outage_that_is_longer_than_its_ttl(
    late: Callable[..., Lab], store: RedisServer
) -> None:
    lab = late(exclusive_store=f"{store.url}?socket_timeout=1", exclusive_offer=1)
    result, _, other = start_pair(lab)
    waiting = lab.send("wait", "k", tag="b")
    lab.wait_for_line(1, "wait", "k")
    (holder,) = lab.task("wait").lock_state("k").holders
    store.stop()
    other.wait_for_log("the search for expired leases")
    is_over = time.monotonic() + holder.remaining + TTL
    eventually(lambda: time.monotonic() > is_over, "the end of the lease")
    store.restart()
    eventually(lambda: lab.task("wait").lock_state("k").holders, "the renewal of the lease")
    lab.assert_kept("wait", "k")
    lab.open("a")
    assert result.get(timeout=60) == "a"
    assert waiting.get(timeout=60) == "b"
    assert lab.journal.tags("start") == ["a", "b"]


@pytest.mark.proves("recovery")
def test_a_large_argument_is_kept_as_it_is(late: Callable[..., Lab]) -> None:
    lab = late()
    tag = "a" * 1_000_000
    doomed = lab.start_worker("doomed", 1)
    result = lab.send("wait", "k", tag=tag, hold=True)
    lab.journal.wait_for("start")
    (text,) = kept(lab)
    assert len(text) < 1.1 * len(tag)
    lab.start_worker("other", 1)
    doomed.kill()
    lab.journal.wait_for("start", 2)
    lab.open(tag)
    assert result.get(timeout=60) == tag


@pytest.mark.proves("recovery")
def test_a_copy_that_the_broker_delivers_while_the_recovered_run_lives_waits_behind_it(
    late: Callable[..., Lab],
) -> None:
    lab = late()
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    doomed = lab.start_worker("doomed", 1)
    message.deliver()
    lab.journal.wait_for("start", tag="a")
    other = lab.start_worker("other", 2)
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="a")
    message.deliver_again()
    wait_for_lines("parked: ", 1, other)
    lab.open("a")
    assert message.result.get(timeout=60) == "a"
    assert lab.send("wait", "k", tag="after").get(timeout=60) == "after"
    assert lab.journal.tags("start") == ["a", "a", "after"]
