"""Who finds a key taken and does not wait in line for it: fails visibly, or comes again later."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError

from celery_exclusive import LockHeld
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message, wait_for_lines
from tests.worker.stage import Stage, on_stages

DEADLINE = 90
MODULE = "tests.worker.shop_conflicts"


def hold(lab: Lab, name: str) -> Any:
    result = lab.send(name, "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    return result


@pytest.mark.promise(
    '`on_conflict="raise"` is a failure with `LockHeld` that ends chain and chord, never against an '
    "earlier run of itself",
    name="raise",
    broke="raise acts as reschedule; kin is not looked for",
)
@on_stages("prefork", "threads", "gevent", brokers=("redis",))
def test_a_task_with_on_conflict_raise_fails_and_so_do_its_chain_and_its_chord(stage: Stage) -> None:
    lab = stage.make_lab(MODULE)
    stage.start_worker(lab, slots=4)
    holder, strict, collect = hold(lab, "strict"), lab.task("strict"), lab.task("collect")
    refused = lab.send("strict", "k", tag="refused")
    with pytest.raises(LockHeld) as error:
        refused.get(timeout=DEADLINE)
    for words in ("task tests.worker.shop_conflicts.strict found lock", f"held by {holder.id} for "):
        assert words in str(error.value)
    assert (error.value.holder, error.value.key) == (holder.id, strict.lock_state("k").key)
    assert refused.state == "FAILURE"
    with pytest.raises(LockHeld):
        chain(strict.si("k", tag="refused"), collect.s()).apply_async().get(timeout=DEADLINE)
    body = chord([strict.s("k", tag="refused"), strict.s("another", tag="member")])(collect.s())
    eventually(lambda: body.state == "FAILURE", "the end of the chord")
    assert isinstance(body.result, ChordError)
    assert "LockHeld" in str(body.result)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags("start")) == ["holder", "member"]


@pytest.mark.proves("raise")
@on_stages("prefork", brokers=("redis",))
def test_a_retry_or_step_with_on_conflict_fail_does_not_fail_against_its_own_earlier_run(
    stage: Stage,
) -> None:
    lab = stage.make_lab(MODULE)
    stage.start_worker(lab)
    retried = lab.send("strict", "k", tag="a", again=True)
    assert retried.get(timeout=DEADLINE) == "a"
    eventually(lambda: not lab.task("strict").lock_state("k").is_running, "the end of its lease")
    steps = chain(*[lab.task("strict").si("k", tag=str(number)) for number in range(3)]).apply_async()
    assert steps.get(timeout=DEADLINE) == "2"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == ["a", "a", "0", "1", "2"]


@pytest.mark.promise(
    '`on_conflict="reschedule"` runs the same task again, later and later, once, in no slot meanwhile; it '
    "gives up",
    name="reschedule",
    broke="copies treated as fresh; it never gives up",
)
@on_stages("prefork", "threads", "gevent", late_only=("rabbitmq",))
def test_a_rescheduled_task_runs_once_as_the_same_task_and_takes_no_slot_meanwhile(
    stage: Stage,
) -> None:
    lab = stage.make_lab(MODULE)
    worker = stage.start_worker(lab)
    holder = hold(lab, "later")
    results = [lab.send("later", "k", tag=tag) for tag in "abc"]
    for result in results:
        wait_for_lines(f"[{result.id}] rescheduled in ", 2, worker)
    assert lab.send("later", "another", tag="other").get(timeout=DEADLINE) == "other, 0 retries"
    assert not lab.task("later").lock_state("k").waiting
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder, 0 retries"
    assert [result.get(timeout=DEADLINE) for result in results] == [f"{tag}, 0 retries" for tag in "abc"]
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags("start", key="k")) == ["a", "b", "c", "holder"]
    assert lab.journal.most_open(key="k") == 1


@pytest.mark.proves("reschedule")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_redelivered_message_and_its_rescheduled_copy_are_one_task(stage: Stage) -> None:
    lab = stage.make_lab(MODULE)
    message = Message.withheld(lab, "later", "k", tag="a")
    worker = stage.start_worker(lab)
    holder = hold(lab, "later")
    message.deliver()
    worker.wait_for_log(f"[{message.id}] rescheduled in ")
    message.deliver_again()
    wait_for_lines(f"[{message.id}] rescheduled in ", 4, worker)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder, 0 retries"
    lab.journal.wait_for("end", tag="a")
    ends = (f"[{message.id}] dropped: another copy", f"[{message.id}] parked: behind its own run")
    eventually(lambda: any(end in worker.log for end in ends), "the end of the other copy")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == ["holder", "a"]


@pytest.mark.proves("reschedule")
@on_stages("prefork", brokers=("redis",))
def test_a_task_rescheduled_for_give_up_after_fails(stage: Stage) -> None:
    lab = stage.make_lab(MODULE)
    worker = stage.start_worker(lab)
    holder = hold(lab, "hasty")
    late = lab.send("hasty", "k", tag="late")
    with pytest.raises(LockHeld, match=r"and gave up after 3 s \(give_up_after\)") as error:
        late.get(timeout=DEADLINE)
    assert error.value.holder == holder.id
    assert f"[{late.id}] rescheduled in " in worker.log
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags("start") == ["holder"]
