"""Canvases whose members wait in line for one key complete, once, in order, with the right results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from tests.worker.lab import Lab, eventually

DEADLINE = 90


@pytest.fixture
def canvas(make_lab: Callable[..., Lab], acks: dict[str, Any]) -> Lab:
    """Two workers of four, and the key "k" taken, so that whatever is sent parks until `let_go`."""
    lab = make_lab(module="tests.worker.shop_canvas", **acks)
    for name in ("w1", "w2"):
        lab.start_worker(name, 4, ready=False)
    lab.send("hold", "k")
    lab.journal.wait_for("start", tag="holder")
    return lab


def let_go(lab: Lab, waiting: int) -> None:
    lab.wait_for_line(waiting, "hold", "k")
    lab.open("holder")


def assert_each_ran_once_and_alone(lab: Lab) -> None:
    eventually(lambda: lab.waiting("hold", "k") == 0, "an empty line")
    repeated = {tag: count for tag, count in Counter(lab.journal.tags("start")).items() if count > 1}
    assert not repeated
    assert lab.journal.most_open(key="k") == 1


@pytest.mark.proves("canvases through the line")
def test_a_group_on_one_key_gives_all_results_in_order(canvas: Lab) -> None:
    result = group(canvas.task("number").s(n, "k") for n in range(8)).apply_async()
    let_go(canvas, 8)
    assert result.get(timeout=DEADLINE) == list(range(8))
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.promise(
    "Chain, group, link and chord complete through waiting, retries and replacements",
    name="canvases through the line",
)
def test_a_chain_on_one_key_runs_its_steps_in_order(canvas: Lab) -> None:
    append = canvas.task("append")
    steps = [append.s(key="k", tag=tag, linger=tag != "d") for tag in "abcd"]
    result = chain(steps).apply_async()
    let_go(canvas, 1)
    assert result.get(timeout=DEADLINE) == ["a", "b", "c", "d"]
    assert canvas.journal.tags("start") == ["holder", "a", "b", "c", "d"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.proves("canvases through the line")
def test_a_link_to_the_same_key_runs_after_its_task(canvas: Lab) -> None:
    append = canvas.task("append")
    append.apply_async(
        kwargs={"key": "k", "tag": "first", "linger": True}, link=append.s(key="k", tag="linked")
    )
    let_go(canvas, 1)
    canvas.journal.wait_for("end", tag="linked")
    assert canvas.journal.tags("start") == ["holder", "first", "linked"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.proves("canvases through the line")
def test_a_chord_on_one_key_calls_its_body_once_with_all_results(canvas: Lab) -> None:
    members = [canvas.task("number").s(n, "k") for n in range(8)]
    result = chord(members)(canvas.task("total").s("k"))
    let_go(canvas, 8)
    assert result.get(timeout=DEADLINE) == 28
    assert canvas.journal.tags("start")[-1] == "total"
    assert_each_ran_once_and_alone(canvas)


def test_a_chord_of_chains_on_one_key_completes(canvas: Lab) -> None:
    append = canvas.task("append")
    members = [chain(append.s(key="k", tag=f"{line}{step}") for step in range(3)) for line in "abcd"]
    result = chord(members)(canvas.task("unlocked_list").s())
    let_go(canvas, 4)
    assert result.get(timeout=DEADLINE) == [[f"{line}{step}" for step in range(3)] for line in "abcd"]
    tags = canvas.journal.tags("start", key="k")
    for line in "abcd":
        assert [tag for tag in tags if tag[0] == line and tag != "holder"] == [f"{line}{n}" for n in range(3)]
    assert_each_ran_once_and_alone(canvas)


def test_a_chord_with_a_failing_member_fails_once_and_the_key_goes_on(canvas: Lab) -> None:
    number = canvas.task("number")
    body = canvas.task("total").s("k").on_error(canvas.task("note_failure").s())
    result = chord([number.s(1, "k"), canvas.task("fail").s("k"), number.s(2, "k")])(body)
    let_go(canvas, 3)
    error = result.get(timeout=DEADLINE, propagate=False)
    assert isinstance(error, ChordError)
    assert "KeyError" in str(error)
    canvas.journal.wait_for("end", tag="errback")
    assert number.delay(3, "k").get(timeout=DEADLINE) == 3
    assert sorted(canvas.journal.tags("start")) == ["1", "2", "3", "errback", "failing", "holder"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.promise(
    "A retry or a replacement waits for its own earlier run",
    name="own earlier run",
    broke="a retry that keeps its publish id; claims without publish id",
)
def test_a_retry_without_delay_waits_for_its_own_earlier_run(canvas: Lab) -> None:
    result = canvas.task("again").delay(key="k", tag="try", linger=True)
    result_in_line = canvas.task("number").delay(7, "k")
    let_go(canvas, 2)
    assert result.get(timeout=DEADLINE) == 2
    assert result_in_line.get(timeout=DEADLINE) == 7
    assert canvas.journal.tags("start", id=result.id) == ["try0", "try1", "try2"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.proves("order")
def test_a_retry_arrives_anew_behind_the_waiting_tasks(canvas: Lab) -> None:
    canvas.task("again").delay(key="k", tag="try", times=1)
    canvas.wait_for_line(1, "hold", "k")
    canvas.task("number").delay(1, "k")
    let_go(canvas, 2)
    canvas.journal.wait_for("end", tag="try1")
    assert canvas.journal.tags("start") == ["holder", "try0", "1", "try1"]


@pytest.mark.proves("own earlier run")
def test_an_automatic_retry_without_delay_waits_for_its_own_earlier_run(canvas: Lab) -> None:
    result = canvas.task("stubborn").delay(key="k", tag="try", linger=True)
    canvas.wait_for_line(1, "hold", "k")
    in_line = [canvas.task("number").delay(n, "k") for n in (1, 2)]
    let_go(canvas, 3)
    assert result.get(timeout=DEADLINE) == 2
    assert [other.get(timeout=DEADLINE) for other in in_line] == [1, 2]
    assert canvas.journal.tags("start", id=result.id) == ["try0", "try1", "try2"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.proves("own earlier run")
def test_a_replacement_on_the_same_key_runs_after_the_replaced_run(canvas: Lab) -> None:
    result = canvas.task("become").delay(key="k", tag="form")
    let_go(canvas, 1)
    assert result.get(timeout=DEADLINE) == 100
    assert canvas.journal.tags("start", id=result.id) == ["form2", "form1", "form0"]
    assert_each_ran_once_and_alone(canvas)


def test_a_replacement_by_a_chain_on_the_same_key_completes(canvas: Lab) -> None:
    result = canvas.task("become_chain").delay(key="k")
    let_go(canvas, 1)
    assert result.get(timeout=DEADLINE) == ["x", "y"]
    assert canvas.journal.tags("start") == ["holder", "chain", "x", "y"]
    assert_each_ran_once_and_alone(canvas)


@pytest.mark.proves("canvases through the line")
def test_a_chord_of_retrying_and_replaced_members_completes(canvas: Lab) -> None:
    members = [
        canvas.task("again").s(key="k", tag="try"),
        canvas.task("become").s(key="k", tag="form"),
        canvas.task("number").s(7, "k"),
    ]
    result = chord(members)(canvas.task("total").s("k"))
    let_go(canvas, 3)
    assert result.get(timeout=DEADLINE) == 2 + 100 + 7
    assert_each_ran_once_and_alone(canvas)
