"""Queued once: who finds its key taken is not sent, and the key is free again when its window is over."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from celery import chain, group

from celery_exclusive import DuplicateTask, Exclusive, Unique
from celery_exclusive.core.records import SECOND
from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import of_fast_part

SHOP = "tests.worker.shop_unique"
DEADLINE = 60
PERIOD = 12
ON_PREFORK = on_stages("prefork", late_only=("rabbitmq",))
IN_ONE_PROCESS = on_stages("threads", "gevent", "solo", brokers=("redis",), lates=(True,))
ONCE = on_stages("prefork", brokers=("redis",), lates=(True,))


def hold(lab: Lab, name: str, tag: str = "holder", key: str = "k", **options: Any) -> Any:
    result = lab.send(name, key, tag, True, options=options)
    lab.journal.wait_for("start", tag=tag)
    return result


def assert_skipped(result: Any, existing: Any) -> None:
    """Nothing was sent, and what was returned stands for the task that has the key."""
    assert (result.outcome, result.existing_id, result.id) == ("skipped", existing.id, existing.id)


def until_finished(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    first = lab.send("once", "k", "first", True)
    assert (first.outcome, first.existing_id) == ("published", None)
    assert_skipped(lab.send("once", "k", "while queued"), first)
    assert stage.messages_at_the_broker(lab) == 1
    stage.start_worker(lab, ready=False)
    lab.journal.wait_for("start", tag="first")
    second = lab.send("once", "k", "while it runs")
    assert_skipped(second, first)
    assert second.key == first.key
    assert lab.send("once", "another", "another").outcome == "published"
    lab.open("first")
    assert second.get(timeout=DEADLINE) == "first"  # it stands for what it would have been
    eventually(lambda: lab.task("once").lock_state("k").unique_holder is None, "a free key")
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    lab.journal.wait_for("end", tag="another")
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags()) == ["another", "first", "next"]


@pytest.mark.promise(
    "A unique call is not queued again until its task has finished, in every pool, and the second call "
    "gets the handle of that task",
    name="unique until finished",
    broke="the publisher does not look at the answer; no release at the end of the body (the chain below)",
)
@ON_PREFORK
def test_the_same_call_is_not_queued_again_until_it_has_finished(stage: Stage) -> None:
    until_finished(stage)


@pytest.mark.proves("unique until finished")
@IN_ONE_PROCESS
def test_the_same_call_is_not_queued_again_until_it_has_finished_in_a_pool_of_one_process(
    stage: Stage,
) -> None:
    until_finished(stage)


@pytest.mark.promise(
    'Until "started": one runs and one more is queued; with `Exclusive` one runs and one waits',
    name="unique until started",
    broke="not released when the body begins",
)
@ON_PREFORK
def test_until_started_lets_one_more_be_queued_while_one_runs(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=1)
    hold(lab, "queued")
    second = lab.send("queued", "k", "second", True)
    assert second.outcome == "published"
    assert_skipped(lab.send("queued", "k", "third"), second)
    lab.open("holder")
    lab.journal.wait_for("start", tag="second")
    assert lab.send("queued", "k", "fourth").outcome == "published"
    lab.open("second")
    lab.journal.wait_for("end", tag="fourth")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "second", "fourth"]


@pytest.mark.proves("unique until started")
@ON_PREFORK
def test_with_both_options_one_runs_and_at_most_one_more_waits(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=4)
    hold(lab, "latest")
    second = lab.send("latest", "k", "second", True)
    lab.wait_for_line(1, "latest", "k")
    for number in range(5):
        assert_skipped(lab.send("latest", "k", f"too many {number}"), second)
    lab.open("holder")
    lab.journal.wait_for("start", tag="second")
    assert lab.send("latest", "k", "third").outcome == "published"
    lab.open("second")
    lab.journal.wait_for("end", tag="third")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "second", "third"]
    assert lab.journal.most_open(key="k") == 1


@pytest.mark.promise(
    "A unique task that waits in line keeps its key for as long as it may wait",
    name="unique key in line",
    broke="its lease is not made longer when it is parked",
)
@pytest.mark.proves("lock_state")
@ONCE
def test_a_task_with_both_options_keeps_its_unique_key_while_it_waits_in_line(stage: Stage) -> None:
    """What waits in line, longer than a body may be silent, is still queued."""
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, slots=3)
    hold(lab, "both", "holder", unique=None)
    waiting = lab.send("both", "k", "waiting")
    lab.wait_for_line(1, "both", "k")
    state = lab.task("both").lock_state("k")
    assert state.unique_holder.task_id == waiting.id
    assert state.unique_holder.remaining > 80_000
    assert (state.is_running, state.is_queued, state.waiting) == (True, True, 1)
    assert_skipped(lab.send("both", "k", "duplicate"), waiting)
    lab.open("holder")
    assert waiting.get(timeout=DEADLINE) == "waiting"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "waiting"]


@pytest.mark.promise(
    "A period is over by the clock alone",
    name="period",
    broke="released at the end of the body",
)
@ONCE
def test_a_period_is_over_by_the_clock_alone(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    began = time.monotonic()
    first = lab.send("seldom", "k", "first")
    assert first.get(timeout=DEADLINE) == "first"
    assert_skipped(lab.send("seldom", "k", "soon"), first)
    unique_holder = lab.task("seldom").lock_state("k").unique_holder
    assert unique_holder.task_id == first.id
    assert unique_holder.remaining <= PERIOD
    eventually(lambda: lab.send("seldom", "k", "later").outcome == "published", "the end of the period")
    assert time.monotonic() - began >= PERIOD
    lab.journal.wait_for("end", tag="later")
    assert lab.journal.tags() == ["first", "later"]


@pytest.mark.promise(
    "`DuplicateTask` names the task, can be pickled, is no alarm in a body, and quiet in beat",
    name="DuplicateTask",
    broke="not in `throws`; its attributes are not pickled; beat raises",
)
@ONCE
def test_a_conflict_may_be_an_error_that_names_the_task_and_can_be_pickled(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    first = lab.send("strict", "k", "first")
    with pytest.raises(DuplicateTask) as caught:
        lab.send("strict", "k", "second")
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert (error.existing_id, error.key) == (first.id, first.key)
        assert f"task {SHOP}.strict was not published: unique key {first.key} is held by {first.id}" in str(
            error
        )
    assert stage.messages_at_the_broker(lab) == 1


@pytest.mark.promise(
    "A call switches `unique=` off, or gives other values, also as a signature in a chain",
    name="unique per call",
    broke="the option of the task holds all the same; values left out; a function as key is written",
)
@ONCE
def test_a_call_may_switch_it_off(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab)
    first = hold(lab, "once")
    beside = lab.send("once", "k", "beside", options={"unique": None})
    assert beside.get(timeout=DEADLINE) == "beside"
    assert_skipped(lab.send("once", "k", "duplicate"), first)
    signature = lab.task("once").s("k", "by signature").set(unique=None)
    assert signature.delay().get(timeout=DEADLINE) == "by signature"
    lab.open("holder")
    assert first.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("unique per call")
@ONCE
def test_a_call_may_give_other_values(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, slots=4)
    holder = hold(lab, "both")
    for _ in range(2):  # more at once than the task allows, and one that does not wait
        beside = lab.task("both").apply_async(
            ("k", "beside"), unique=None, exclusive=Exclusive("key", limit=2, ttl=99)
        )
        assert beside.get(timeout=DEADLINE) == "beside"
    skipped = lab.task("both").apply_async(
        ("k", "skipped"), unique=None, exclusive=Exclusive("key", on_conflict="skip", skip_result="no")
    )
    assert skipped.get(timeout=DEADLINE) == "no"
    steps = chain(
        lab.task("both").si("a", "first"),
        lab.task("both").si("a", "second").set(unique=Unique("tag", ttl=9)),
    )
    assert steps.apply_async().get(timeout=DEADLINE) == "second"
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags() == ["holder", "beside", "beside", "first", "second"]


@pytest.mark.proves("countdown and queued ttl")
@ONCE
def test_a_countdown_is_added_to_the_time_for_which_a_message_may_be_queued(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_queued_ttl=1000)
    later = lab.send("once", "k", "later", options={"countdown": 50_000})
    state = lab.task("once").lock_state("k")
    assert (state.unique_holder.task_id, state.is_running, state.is_queued) == (later.id, False, True)
    assert 50_900 < state.unique_holder.remaining <= 51_000


@pytest.mark.promise(
    "A body keeps its unique key for longer than its `ttl`",
    broke="no heartbeat for it; its ttl not set at the start",
)
@ONCE
def test_a_body_keeps_its_key_for_longer_than_its_ttl(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=9)
    stage.start_worker(lab)
    holder = hold(lab, "once")
    assert lab.task("once").lock_state("k").is_running
    lab.assert_kept("once", "k", renewals=4)
    assert_skipped(lab.send("once", "k", "duplicate"), holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A body that publishes its own unique call gets an error",
    broke="one's own key is like any other",
)
@ONCE
def test_a_task_that_publishes_itself_from_its_body_gets_an_error(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=1)
    result = lab.send("again", "k", "first")
    assert result.get(timeout=DEADLINE) == "first"
    (refused,) = lab.journal.events("refused")
    assert refused["existing_id"] == result.id
    assert "publishes a call with its own unique key" in refused["why"]
    assert "Unique(until='started')" in refused["why"]
    eventually(lambda: lab.send("again", "k", "second", bypass=True).outcome == "published", "a free key")
    lab.journal.wait_for("end", tag="inside")
    stage.assert_nothing_is_left(lab)


@pytest.mark.promise(
    "A unique call asks the store once to publish, also for a conflict, and once for each member of a group",
    figure="what a group of 10,000 takes: [speed](project/speed.md)",
)
@of_fast_part
@ONCE
def test_each_step_is_one_call_of_the_store(stage: Stage) -> None:
    """One to publish, also for a conflict. After a conflict a plain call looks first."""
    lab = stage.make_lab(SHOP)
    lab.task("once").lock_state("warm up")
    lab.send("queued", "warm up")
    calls: list[Any] = []
    store = lab.app._celery_exclusive.store
    for method in ("apply", "acquire_and_push", "holder"):
        ask = getattr(store, method)
        spy = lambda key, *rest, ask=ask: (calls.append(*rest[:1] or [key]), ask(key, *rest))[1]  # noqa: E731
        setattr(store, method, spy)
    lab.send("once", "k", "first")
    assert [type(call).__name__ for call in calls] == ["AcquireAlone"]
    assert calls.pop().ttl == 86_400 * SECOND
    lab.send("once", "k", "second")
    assert [type(call).__name__ for call in calls] == ["AcquireAlone"]
    calls.clear()
    group(lab.task("once").si(f"{n % 50}", "member") for n in range(100)).apply_async()
    assert [type(call).__name__ for call in calls] == ["AcquireAlone"] * 100
    calls.clear()
    lab.send("once", "k", "third")
    lab.send("once", "k", "fourth")
    assert [type(call).__name__ for call in calls] == ["str", "str"], "a look"
