"""Admitted once, admitted for good: what goes on with what has begun waits, whatever its policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.lab import Lab
from tests.worker.message import Message
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_again"
DEADLINE = 60
POLICY = pytest.mark.parametrize("policy", ["skip", "refuse"])


def send(lab: Any, policy: str, tag: str, **kwargs: Any) -> Any:
    return lab.app.tasks[policy].delay("k", tag, **kwargs)


def hold(lab: Any) -> Any:
    """Another call of the same lock, which is open at the door "holder" as soon as that is free."""
    holder = lab.send("reject", "k", "holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    return holder


@pytest.mark.promise(
    "A retry, or a task that is redelivered after a crash, waits for the run of another call, whatever "
    "`on_conflict` says",
    name="admitted tasks wait",
    broke="red before",
)
@on_stages("prefork", brokers=("redis",))
@POLICY
def test_a_retry_that_meets_another_call_waits_for_it_and_runs(stage: Stage, policy: str) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    retried = send(lab, policy, "retried", retries=1)
    lab.journal.wait_for("end", tag="retried")
    holder = hold(lab)
    worker.wait_for_log(f"[{retried.id}] parked: number 1 in line")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, retried)] == ["holder", "retried"]
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("end") == ["retried", "holder", "retried"]


@pytest.mark.proves("admitted tasks wait")
@on_stages("prefork", brokers=("redis",), lates=(True,))
@POLICY
def test_a_task_redelivered_after_a_crash_that_meets_another_call_waits_for_it_and_runs(
    stage: Stage, policy: str
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=9)
    doomed = stage.start_worker(lab)
    first = send(lab, policy, "first", hold=True)
    lab.journal.wait_for("start", tag="first")
    message = Message.unacknowledged(lab, first.id)
    doomed.kill()
    worker = stage.start_worker(lab, "w2", slots=3)
    holder = hold(lab)  # when the lease of the dead worker has expired
    message.deliver_again()
    worker.wait_for_log(f"[{first.id}] parked: number 1 in line")
    lab.open("holder", "first")
    assert [result.get(timeout=DEADLINE) for result in (holder, first)] == ["holder", "first"]
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("end") == ["holder", "first"]


@pytest.mark.promise(
    "A full line does not refuse a message that returns through a dead-letter exchange",
    broke="red before",
)
def test_a_message_that_comes_back_through_a_dead_letter_queue_joins_a_full_line(
    make_lab: Callable[..., Lab], acks: dict[str, Any]
) -> None:
    lab = make_lab(module=SHOP, **acks)
    message = Message.withheld(lab, "full", "k", "back")
    lab.start_worker("w1", 4)
    lab.send("full", "k", "holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    waits = lab.send("full", "k", "waits")
    lab.wait_for_line(1, "full", "k")
    newcomer = lab.send("full", "k", "newcomer")
    assert "skipped" in newcomer.get(timeout=DEADLINE)
    message.content["headers"]["x-death"] = [{"reason": "rejected", "queue": "lab", "count": 1}]
    message.deliver()
    lab.wait_for_line(2, "full", "k")
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (waits, message.result)] == ["waits", "back"]


@pytest.mark.proves("admitted tasks wait")
@on_stages("prefork", brokers=("redis",), lates=(True,))
@POLICY
def test_a_newcomer_that_meets_another_call_is_turned_away(stage: Stage, policy: str) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, slots=3)
    holder = hold(lab)
    send(lab, policy, "other").get(timeout=DEADLINE, propagate=False)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder"]
