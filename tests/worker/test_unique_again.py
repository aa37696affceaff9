"""What has run once and goes on, as a retry, a replacement or a copy, is never refused for its own sake."""

from __future__ import annotations

import os
import signal

import pytest

from celery_exclusive import LockHeld, Unique
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message, park_behind
from tests.worker.stage import Stage
from tests.worker.test_unique import ONCE, SHOP, assert_skipped, hold
from tests.worker.versions import needs_celery

pytestmark = pytest.mark.promise(
    "A task that has run and goes on, as a retry or a replacement, also of a message without our header or "
    "without a key, is never refused, and has the key of its run. A replacement with another key may be "
    "refused",
    name="unique, goes on",
    broke=(
        "only what has our header is a retry; only a retry is never refused; the key of the header alone; "
        "what parks is queued, also behind its own run"
    ),
)

DEADLINE = 60


def from_elsewhere(lab: Lab, name: str, key: str, tag: str) -> Message:
    """The call of a publisher without this library, whose body is held open."""
    message = Message.withheld(lab, name, key, tag, True, options={"unique": None})
    del message.content["headers"]["exclusive"]
    return message


@ONCE
def test_the_retry_of_a_message_from_elsewhere_runs_though_another_call_is_queued(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    message = from_elsewhere(lab, "twice", "k", "first")
    stage.start_worker(lab, slots=1)
    message.deliver()
    lab.journal.wait_for("start", tag="first")
    other = lab.send("twice", "k", "other")
    lab.open("first", "first")
    assert message.result.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags()) == ["first", "first", "other"]


@ONCE
def test_the_retry_of_a_message_from_elsewhere_does_not_begin_its_period_anew(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    message = from_elsewhere(lab, "twice_a_period", "k", "first")
    stage.start_worker(lab)
    message.deliver()
    lab.journal.wait_for("start", tag="first")
    before = lab.task("twice_a_period").lock_state("k").unique_holder
    lab.open("first", "first")
    assert message.result.get(timeout=DEADLINE) == "first"
    after = lab.task("twice_a_period").lock_state("k").unique_holder
    assert after.age + after.remaining == pytest.approx(before.age + before.remaining)


@ONCE
def test_a_replacement_runs_though_another_call_is_queued(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, slots=1)
    first = hold(lab, "page", "first")
    other = lab.send("page", "k", "other")
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "second"
    assert other.get(timeout=DEADLINE) == "other"
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags()) == ["first", "other", "second"]


@ONCE
def test_a_run_hands_its_key_to_its_retry_though_it_came_without_one(stage: Stage) -> None:
    """As a call that was allowed to go without the store, or one of a release without the option."""
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    message = Message.withheld(lab, "patient", "k", "retried")
    lab.task("patient").release_lock("k")
    message.content["headers"]["exclusive"]["unique"] = None
    stage.start_worker(lab)
    message.deliver()
    eventually(lambda: message.result.state == "RETRY", "its retry")
    assert_skipped(lab.send("patient", "k", "duplicate"), message.result)
    assert message.result.get(timeout=DEADLINE) == "retried"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["retried", "retried"]


@ONCE
def test_a_copy_that_waits_behind_its_own_run_leaves_its_key_to_that(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=3)
    holder = hold(lab, "both")
    park_behind(holder.id, lab, worker)
    state = lab.task("both").lock_state("k")
    assert state.unique_holder.remaining <= 600  # that of the run: it expires with the lock, if the run dies
    assert not state.is_unique_holder_queued
    with pytest.raises(LockHeld):
        lab.task("both").release_lock("k")
    assert_skipped(lab.send("both", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder"]


@ONCE
def test_a_replacement_with_another_key_is_skipped_if_that_is_held(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    first = lab.send("seldom", "k", "first", options={"unique": Unique("key", period=600)})
    stage.start_worker(lab)
    assert first.get(timeout=DEADLINE) == "first"
    assert lab.send("other", "k", "replaced").get(timeout=DEADLINE)["skipped"]["existing_id"] == first.id
    assert lab.journal.tags() == ["first", "replaced"]


@needs_celery("5.7", "task_retry_on_worker_lost")
@pytest.mark.parametrize("is_from_elsewhere", [False, True])
@ONCE
def test_the_retry_of_a_lost_child_runs_though_another_call_is_queued(
    stage: Stage, is_from_elsewhere: bool
) -> None:
    soon = {"task_retry_on_worker_lost": True, "task_annotations": {"*": {"default_retry_delay": 0}}}
    lab = stage.make_lab(SHOP, exclusive_ttl=600, **soon)
    if is_from_elsewhere:
        message = from_elsewhere(lab, "queued", "k", "first")
    else:
        message = Message.withheld(lab, "queued", "k", "first", True)
    worker = stage.start_worker(lab, slots=1)
    message.deliver()
    (start,) = lab.journal.wait_for("start", tag="first")
    worker.wait_accepted(message.id)
    other = lab.send("queued", "k", "other")
    os.kill(start["pid"], signal.SIGKILL)
    lab.open("first", "first")  # the dead one may take one of them
    assert message.result.get(timeout=DEADLINE) == "first"
    assert other.get(timeout=DEADLINE) == "other"
    assert lab.journal.tags("end") in (["first", "other"], ["other", "first"])
