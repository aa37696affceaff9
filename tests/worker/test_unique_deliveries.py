"""Of several deliveries of one message none frees or keeps the key of another one; nor what expires."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta, timezone

import pytest

from celery_exclusive import Exclusive, Unique
from tests.worker.lab import eventually
from tests.worker.message import Message, park_behind, stop_consuming
from tests.worker.stage import Stage, on_stages
from tests.worker.test_unique import ONCE, SHOP, assert_skipped, hold
from tests.worker.versions import needs_celery

DEADLINE = 60


@pytest.mark.promise(
    "A copy of a running task that is discarded (expired, revoked), an ending that is reported late, an "
    "interrupted call: none of them touches the key of the delivery that runs",
    name="unique, key of the running delivery",
    broke="one token for all deliveries of a message; any token will do",
)
@pytest.mark.parametrize("name", ["once", "both"])
@pytest.mark.parametrize("how", ["expired", "revoked"])
@ONCE
def test_a_copy_that_is_discarded_leaves_the_key_to_the_body_that_runs(
    stage: Stage, how: str, name: str
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    holder = hold(lab, name)
    after = lab.send("once", "after", "after", options={"queue": "nowhere"})
    lab.app.control.revoke(after.id, reply=True, timeout=60, limit=1)
    message = Message.unacknowledged(lab, holder.id)
    if how == "revoked":
        lab.app.control.revoke(holder.id, reply=True, timeout=60, limit=1)
    else:
        past = datetime.now(timezone.utc) - timedelta(hours=1)
        message.content["headers"]["expires"] = past.isoformat()
    message.deliver_again()
    worker.wait_for_log(f"[{holder.id}]")
    worker.wait_for_log("Discarding revoked task")
    lab.app.control.add_consumer("nowhere", reply=True, timeout=60, limit=1)
    eventually(lambda: lab.task("once").lock_state("after").unique_holder is None, "what was told next")
    assert_skipped(lab.send(name, "k", "second"), holder)
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")
    eventually(lambda: lab.send(name, "k", "next").outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="next")
    assert lab.journal.tags() == ["holder", "next"]


@pytest.mark.proves("unique, key of the running delivery")
@needs_celery("5.5", "task_acks_on_failure_or_timeout that is heeded for a hard time limit")
@on_stages("prefork", lates=(True,))
def test_an_ending_that_is_reported_late_leaves_the_key_to_the_delivery_that_runs(stage: Stage) -> None:
    """Celery gives the message back before the child that is over its limit is dead."""
    lab = stage.make_lab(SHOP, exclusive_ttl=9, task_acks_on_failure_or_timeout=False)
    stage.start_worker(lab, "w1")
    stage.start_worker(lab, "w2")
    holder = lab.send("once", "k", "holder", True, options={"time_limit": 6})
    lab.journal.wait_for("start", 2, tag="holder")
    lab.assert_kept("once", "k", renewals=1)
    state = lab.task("once").lock_state("k")
    assert (state.is_running, state.is_queued) == (True, False)
    assert state.unique_holder.remaining <= 9
    assert_skipped(lab.send("once", "k", "second"), holder)
    lab.open("holder")
    lab.journal.wait_for("end", tag="holder")


@pytest.mark.promise(
    "In a queue longer than `queued_ttl` one of its messages always runs, and takes the key over from no "
    "task that runs in any case. A task that expires has its key no longer than that",
    name="queue longer than queued_ttl",
    broke=(
        "it leaves its turn to the queued one; a retry takes that one's key, too; it takes the key of a "
        "retry; `expires` not looked at"
    ),
)
@ONCE
def test_in_a_queue_that_is_longer_than_queued_ttl_messages_run_one_after_the_other(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    short = {"unique": Unique("key", queued_ttl=0.1)}
    sent = []
    for n in range(5):
        sent.append(lab.send("once", "k", str(n), options=short))
        assert sent[-1].outcome == "published"
        eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "an end of its queued_ttl")
    last = lab.send("once", "k", "last")
    assert last.outcome == "published"
    stage.start_worker(lab, slots=1)
    assert [result.get(timeout=DEADLINE) for result in [*sent, last]] == ["0", "1", "2", "3", "4", "last"]
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("queue longer than queued_ttl")
@ONCE
def test_a_task_in_line_holds_its_key_no_longer_than_it_may_wait(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=60)
    stage.start_worker(lab)
    hold(lab, "both", unique=None)
    mortal = lab.send("both", "k", "mortal", options={"expires": 300})
    lab.wait_until_in_line(mortal.id, "both", "k")
    unique_holder = lab.task("both").lock_state("k").unique_holder
    assert unique_holder.task_id == mortal.id
    assert unique_holder.remaining <= 300
    lab.open("holder")
    assert mortal.get(timeout=DEADLINE) == "mortal"


@pytest.mark.promise(
    "`Unique()` guards its run: a copy waits behind the run, is dropped when the run is done, and runs if "
    "the run dies",
    name="copies of a unique run",
    broke="red before",
)
@ONCE
def test_a_copy_of_a_running_unique_task_waits_behind_it_and_is_dropped_when_that_is_done(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    holder = hold(lab, "once")
    park_behind(holder.id, lab, worker)
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags() == ["holder", "next"]


@pytest.mark.proves("copies of a unique run")
@ONCE
@pytest.mark.parametrize("victim", ["child", "worker"])
def test_a_copy_of_a_running_unique_task_runs_when_that_dies(stage: Stage, victim: str) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=9 if victim == "worker" else 600)
    doomed = stage.start_worker(lab)
    holder = hold(lab, "once")
    other = stage.start_worker(lab, "w2")
    doomed.wait_accepted(holder.id)
    stop_consuming(lab, doomed, "lab")
    park_behind(holder.id, lab, other)
    if victim == "child":
        (start,) = lab.journal.events("start")
        os.kill(start["pid"], signal.SIGKILL)
    else:
        doomed.kill()
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert len(lab.journal.events("end")) == 1


@pytest.mark.promise(
    "A task with both options that is redelivered at once after a crash runs when the leases of its dead "
    "run have ended",
    broke="the lease of the dead run extended: it waited for `queued_ttl`",
)
@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
def test_a_message_that_is_redelivered_at_once_after_a_crash_waits_for_both_keys_of_its_dead_run(
    stage: Stage,
) -> None:
    """It must not take the unique key of its dead run for that of a message that waits: that lasts a day."""
    lab = stage.make_lab(SHOP, exclusive_ttl=9)
    doomed = stage.start_worker(lab)
    holder = hold(lab, "both")
    other = stage.start_worker(lab, "w2")
    doomed.kill()
    other.wait_for_log(f"[{holder.id}] parked")
    lab.journal.wait_for("start", 2, tag="holder")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A run that has handed its key to its retry or replacement does not begin again once that has begun, "
    "whatever copies of the run wait or come",
    name="copies of a superseded run",
    broke=(
        "without the removal the copy waited in line; explorer: copies outlive the retry; a removal that "
        "may fail"
    ),
    also="the explorer",
)
@ONCE
def test_a_copy_of_a_run_does_not_begin_when_the_retry_that_got_its_key_has_finished(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    result = lab.send("slow_end", "k", "tag", True)
    lab.journal.wait_for("start", tag="tag")
    park_behind(result.id, lab, worker)
    lab.open("tag")
    lab.journal.wait_for("sent", tag="retry")
    lab.open("tag")
    lab.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    assert result.get(timeout=DEADLINE) == "tag"
    assert lab.task("slow_end").lock_state("k").waiting == 0
    lab.open("end")
    stage.assert_nothing_is_left(lab)
    assert len(lab.journal.events("start")) == 2


@pytest.mark.promise(
    "A lock that a call alone asks for is waited for like a declared one",
    broke="its place in line was left, as if the task had an option no more: the task was lost",
)
@on_stages("prefork", brokers=("redis",))
def test_a_task_that_waits_for_a_lock_which_its_call_alone_asked_for_runs(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, "w1", 3)
    options = {"exclusive": Exclusive(key="one at a time")}
    lab.send("once", "a", "holder", True, options=options)
    lab.journal.wait_for("start", tag="holder")
    for key in "bc":
        sent = lab.send("once", key, key, options=options)
        worker.wait_for_log(f"[{sent.id}] parked: ")
    lab.open("holder")
    lab.journal.wait_for("end", tag="b")
    lab.journal.wait_for("end", tag="c")
    for key in "abc":
        eventually(lambda key=key: lab.task("once").lock_state(key).unique_holder is None, "a free key")
    assert "left the line of lock" not in worker.log
