"""A worker that dies with a late unique task: the store publishes its message when the lease is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain

from celery_exclusive import Exclusive, Unique
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import Message, stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.test_recover import kept
from tests.worker.test_unique import SHOP, assert_skipped, hold

pytestmark = pytest.mark.promise(
    "With `unique=` alone the task of a killed worker (late, Redis) runs again after `ttl`, in every pool, "
    "and has its key meanwhile; so do a retry, the step of a chain, and a task with both options, whose "
    "message is kept once. The broker's own copy is dropped. A body that was paused is told. When its body "
    "has ended, or its retry has the key, nothing is kept or recovered",
    name="unique, recovery",
    broke=(
        "explorer: a unique run that dies is not kept, what a run has kept is offered when its body has "
        "ended, or stays in line when a retry has its key; the code before: not run again within the hour"
    ),
    also="the explorer, with the settings `recover, one key: ...`",
)

TTL = 3
DEADLINE = 60


@pytest.fixture
def late(make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """Makes a lab whose broker hides the messages of a dead worker for an hour, as Celery's default is."""
    return lambda module=SHOP, **conf: make_lab(
        module=module,
        **{
            "task_acks_late": True,
            "exclusive_ttl": TTL,
            "broker_transport_options": {"visibility_timeout": 3600},
            **conf,
        },
    )


def start_pair(lab: Lab, name: str = "once", **options: Any) -> tuple[Any, Worker, Worker]:
    """Start a task on a worker that is to die, and another worker."""
    doomed = lab.start_worker("doomed", 1, worker_prefetch_multiplier=1)
    result = hold(lab, name, **options)
    return result, doomed, lab.start_worker("other", 2)


@on_stages("prefork", "threads", "gevent", "solo", brokers=("redis",), lates=(True,))
def test_a_unique_task_whose_worker_is_killed_runs_again_when_its_lease_is_over(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=TTL, broker_transport_options={})
    doomed = stage.start_worker(lab, "doomed")
    holder = hold(lab, "once")
    assert len(kept(lab)) == 1
    other = stage.start_worker(lab, "other")
    killed = time.monotonic_ns()
    doomed.kill()
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    _, again = lab.journal.wait_for("start", 2, tag="holder")
    stage.note("worker-killed-again", killed, again["at"])
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: not kept(lab), "no message in the store")
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["holder", "holder", "next"]
    assert other.process.poll() is None


def test_the_broker_s_own_copy_of_a_recovered_unique_task_is_dropped(late: Callable[..., Lab]) -> None:
    timeouts = {"visibility_timeout": 12, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    lab = late(broker_transport_options=timeouts)
    holder, doomed, other = start_pair(lab)
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    other.wait_for_log("dropped: another copy")
    eventually(lambda: lab.messages_at_the_broker() == 0, "an empty broker")
    assert lab.journal.tags() == ["holder", "holder"]


def test_a_unique_body_that_was_paused_past_its_lease_is_told_that_it_was_recovered(
    late: Callable[..., Lab],
) -> None:
    lab = late("tests.worker.shop_fenced", exclusive_ttl=9)
    paused = lab.start_worker("paused", 1, worker_prefetch_multiplier=1)
    lab.send("save_once", "k", tag="t", hold=True, check=True)
    lab.journal.wait_for("start", tag="t")
    stop_consuming(lab, paused, "lab")
    lab.start_worker("other", 1)
    paused.pause()
    first, second = lab.journal.wait_for("start", 2, tag="t")
    assert first["fence"] < second["fence"]
    lab.open("t", "t")
    lab.journal.wait_for("written", tag="t")
    paused.resume()
    lab.journal.wait_for("lost", tag="t")
    paused.wait_for_log("lost its lease")
    assert len(lab.journal.events("written")) == 1


def test_a_unique_task_whose_worker_is_killed_after_its_body_is_left_to_the_broker(
    late: Callable[..., Lab],
) -> None:
    """Its key is free since its body has ended, so that its callbacks find it free."""
    lab = late()
    holder, doomed, other = start_pair(lab, "lingering")
    lab.open("holder")
    lab.journal.wait_for("hook")
    assert kept(lab) == []
    assert lab.task("lingering").lock_state("k").unique_holder is None
    doomed.kill()
    lab.open("hook")
    assert lab.send("lingering", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["holder", "next"]
    Message.unacknowledged(lab, holder.id).deliver_again()
    lab.open("holder", "hook")
    lab.journal.wait_for("end", 2, tag="holder")
    assert lab.journal.tags() == ["holder", "next", "holder"]
    assert other.process.poll() is None


def test_a_unique_task_leaves_no_message_to_the_retry_that_inherits_its_key(late: Callable[..., Lab]) -> None:
    lab = late()
    lab.start_worker("only", 1)
    result = lab.send("slow_end", "k", "t", True)
    lab.journal.wait_for("start", tag="t")
    assert len(kept(lab)) == 1
    lab.open("t")
    lab.journal.wait_for("sent", tag="retry")
    assert kept(lab) == []
    state = lab.task("slow_end").lock_state("k")
    assert (state.unique_holder.task_id, state.waiting) == (result.id, 0)
    lab.open("end", "t")
    lab.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    assert result.get(timeout=DEADLINE) == "t"
    eventually(lambda: not kept(lab), "no message in the store")
    assert lab.journal.tags() == ["t", "t"]


def test_a_retry_of_a_unique_task_whose_worker_is_killed_runs_again(late: Callable[..., Lab]) -> None:
    lab = late()
    doomed = lab.start_worker("doomed", 1, worker_prefetch_multiplier=1)
    result = lab.send("end", "k", "t", "retry", True)
    lab.journal.wait_for("start", tag="t")
    lab.open("t")
    lab.journal.wait_for("start", 2, tag="t")
    lab.start_worker("other", 1)
    doomed.kill()
    lab.journal.wait_for("start", 3, tag="t")
    lab.open("t")
    assert result.get(timeout=DEADLINE) == "t"
    eventually(lambda: not kept(lab), "no message in the store")
    assert lab.send("end", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["t", "t", "t", "next"]


def test_with_both_options_the_message_is_kept_once_and_recovered(late: Callable[..., Lab]) -> None:
    lab = late()
    holder, doomed, _ = start_pair(lab, "both")
    assert len(kept(lab)) == 1
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: lab.send("both", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.tags() == ["holder", "holder", "next"]


def test_a_chain_whose_step_is_recovered_is_completed_once(late: Callable[..., Lab]) -> None:
    lab = late()
    append = lab.task("append")
    doomed = lab.start_worker("doomed", 1, worker_prefetch_multiplier=1)
    steps = [append.s(key="k", tag="1", hold=True), append.s(key="k", tag="2")]
    result = chain(steps).apply_async()
    lab.journal.wait_for("start", tag="1")
    lab.start_worker("other", 1)
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="1")
    lab.open("1")
    assert result.get(timeout=DEADLINE) == ["1", "2"]
    eventually(lambda: not kept(lab), "no message in the store")
    assert lab.journal.tags() == ["1", "1", "2"]


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_killed_child_of_a_unique_task_leaves_no_message_or_has_it_delivered_again(
    late: Callable[..., Lab], comes_again: bool
) -> None:
    lab = late(exclusive_ttl=600, task_reject_on_worker_lost=comes_again)
    holder, _, _ = start_pair(lab)
    (first,) = lab.journal.events("start")
    os.kill(first["pid"], signal.SIGKILL)
    if comes_again:
        lab.journal.wait_for("start", 2, tag="holder")
        assert_skipped(lab.send("once", "k", "duplicate"), holder)
        lab.open("holder")
        assert holder.get(timeout=DEADLINE) == "holder"
    else:
        with pytest.raises(Exception, match="Worker exited prematurely"):
            holder.get(timeout=DEADLINE)
    eventually(lambda: not kept(lab), "no message in the store")
    eventually(lambda: lab.send("once", "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.tags() == ["holder", *["holder"][:comes_again], "next"]


@pytest.mark.parametrize("conf", [{"task_acks_late": False}, {"exclusive_recover": False}])
def test_with_early_acknowledgement_or_switched_off_the_store_keeps_no_message_of_a_unique_run(
    late: Callable[..., Lab], conf: dict[str, Any]
) -> None:
    lab = late(**conf)
    start_pair(lab)
    assert kept(lab) == []


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"unique": Unique("key", recover=True)}, 1),
        ({"unique": Unique("key")}, 0),
        ({"unique": Unique("key", until="started")}, 0),
        ({"unique": Unique("key", recover=True), "exclusive": Exclusive("key")}, 1),
        (
            {
                "unique": Unique("key", recover=True),
                "exclusive": Exclusive("key", recover=False, order="arrived"),
            },
            0,
        ),
    ],
)
def test_of_both_options_the_first_that_says_so_decides_before_the_setting(
    late: Callable[..., Lab], options: dict[str, Any], count: int
) -> None:
    lab = late(exclusive_recover=False)
    lab.start_worker("only", 1)
    holder = hold(lab, "both" if "exclusive" in options else "once", **options)
    assert len(kept(lab)) == count
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    eventually(lambda: not kept(lab), "no message in the store")


@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
def test_on_rabbitmq_a_unique_message_that_is_kept_all_the_same_runs_once_more(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=TTL, exclusive_recover=True)
    doomed = stage.start_worker(lab, "doomed")
    holder = hold(lab, "once")
    assert len(kept(lab)) == 1
    stage.start_worker(lab, "other")
    doomed.kill()
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["holder", "holder", "next"]
