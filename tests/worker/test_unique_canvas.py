"""Duplicates inside canvases: nothing hangs, nothing runs twice, and order holds."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

from celery_exclusive import Conflict, Exclusive, Unique
from tests.worker.lab import Lab, eventually
from tests.worker.message import consume
from tests.worker.stage import Stage
from tests.worker.test_unique import ONCE, SHOP, hold

pytestmark = pytest.mark.promise(
    "Duplicates in chains (first, middle, last), groups, chords (first, last, all members, nested) and "
    "links: nothing hangs, runs twice or changes order; results on Redis and in a database",
    broke="members are not sent; a duplicate's body runs",
)

DEADLINE = 60
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


@pytest.fixture(params=["redis", "database"])
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab], redis_url: str, tmp_path: Path) -> Lab:
    """A worker with results on Redis or in a database, and the holder of key "k" as a plain task."""
    results = redis_url if request.param == "redis" else f"db+sqlite:///{tmp_path}/results.db"
    lab = make_lab(module=SHOP, result_backend=results, exclusive_store=redis_url, **LATE)
    lab.start_worker("w1", 6)
    if request.param == "database":  # one process makes its tables, before others ask
        lab.send("linked", None)
        eventually(lambda: has_results(tmp_path / "results.db"), "its tables")
    return lab


def has_results(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as database:
        return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = 'celery_taskmeta'").fetchall())


def skipped(existing: Any) -> dict[str, Any]:
    return {"skipped": {"key": existing.key, "existing_id": existing.id}}


def test_a_duplicate_step_of_a_chain_hands_its_skip_result_to_the_next(lab: Lab) -> None:
    append = lab.task("append")
    holder = append.apply_async(kwargs={"key": "k", "tag": "holder", "hold": True})
    lab.journal.wait_for("start", tag="holder")
    for place in range(3):
        steps = [append.s(key=f"{place}{n}", tag=f"{place}{n}") for n in range(3)]
        steps[place] = append.s(key="k", tag="duplicate")
        result = chain(steps).apply_async().get(timeout=DEADLINE)
        second, last = f"{place}1", f"{place}2"
        hole = skipped(holder)
        assert result == [[hole, second, last], [hole, last], hole][place]
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == ["holder"]
    assert lab.journal.tags() == ["holder", "01", "02", "10", "12", "20", "21"]


@pytest.mark.promise(
    "A chain of one unique call twice runs both; a replacement has the key of the run that it replaces",
    name="same call in a chain",
    broke="released after the callbacks; no hand-over to the replacement",
)
def test_a_chain_of_one_call_twice_runs_it_twice(lab: Lab) -> None:
    append = lab.task("append")
    steps = chain(append.s(key="k", tag="a"), append.s(key="k", tag="b"), append.s(key="k", tag="c"))
    assert steps.apply_async().get(timeout=DEADLINE) == ["a", "b", "c"]
    assert lab.journal.tags() == ["a", "b", "c"]


def test_a_group_has_a_skip_result_for_each_duplicate(lab: Lab) -> None:
    append = lab.task("append")
    same = group(append.s(key="k", tag=f"same {n}", hold=True) for n in range(3)).apply_async()
    (start,) = lab.journal.wait_for("start")
    one = next(result for result in same if result.id == start["id"])
    eventually(lambda: all(result.ready() for result in same if result is not one), "the end of the others")
    lab.open(start["tag"])
    results = same.get(timeout=DEADLINE)
    assert [start["tag"]] in results
    assert sum(result == skipped_by(start["id"], lab) for result in results) == 2
    assert lab.journal.tags() == [start["tag"]]


def skipped_by(id: str, lab: Lab) -> dict[str, Any]:
    key = lab.task("append").lock_state(key="k", tag="").key
    return {"skipped": {"key": key, "existing_id": id}}


@pytest.mark.parametrize("duplicates", [[0], [3], [0, 1, 2, 3]], ids=["first", "last", "all"])
def test_a_chord_with_duplicates_completes_once(lab: Lab, duplicates: list[int]) -> None:
    number, total = lab.task("number"), lab.task("total")
    holder = number.delay(100, "k", hold=True)
    lab.journal.wait_for("start", tag="100")
    members = [number.s(n + 1, "k" if n in duplicates else f"free {n}") for n in range(4)]
    assert chord(members)(total.s()).get(timeout=DEADLINE) == sum(
        n + 1 for n in range(4) if n not in duplicates
    )
    nested = chain(chord(members, total.si([7], "inner")), total.si([8], "outer"))
    assert nested.apply_async().get(timeout=DEADLINE) == 8
    lab.open("100")
    assert holder.get(timeout=DEADLINE) == 100
    assert lab.journal.tags().count("total") == lab.journal.tags().count("inner") == 1
    ran = [n + 1 for n in range(4) if n not in duplicates] * 2
    numbers = [int(tag) for tag in lab.journal.tags(task=f"{SHOP}.number") if tag != "100"]
    assert sorted(numbers) == sorted(ran)


@pytest.mark.promise(
    "A step that may be skipped is warned of once per task and process, with what its next step gets. With "
    '`on_conflict="raise"` a second chain fails, and the first one hands its result on',
    name="skipped steps",
    broke="no warning; the duplicate of a step with `Unique` or `Exclusive` skipped in place of the error",
)
@ONCE
def test_a_second_chain_of_steps_with_raise_fails_and_with_skip_it_keeps_the_first_from_its_end(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=4)
    append = lab.task("append")

    def call(name: str, tag: str, options: dict[str, Any]) -> Any:
        """Call a chain that generates a file and sends it."""
        steps = [
            append.s(key=f"{name} {step}", tag=f"{step} {tag}", hold=True).set(**options)
            for step in ("generate", "send")
        ]
        return chain(*steps, lab.task("total").si([])).apply_async()

    for name, option in {
        "unique": {"unique": Unique("key", on_conflict="raise")},
        "exclusive": {"unique": None, "exclusive": Exclusive("key", on_conflict="raise")},
    }.items():
        first = call(name, f"{name} first", option)
        lab.journal.wait_for("start", tag=f"generate {name} first")
        with pytest.raises(Conflict):
            call(name, f"{name} second", option).get(timeout=DEADLINE)
        lab.open(f"generate {name} first", f"send {name} first")
        assert first.parent.get(timeout=DEADLINE) == [f"generate {name} first", f"send {name} first"]
    assert "is a step of a canvas" not in caplog.text + worker.log
    first = call("skip", "first", {})
    lab.journal.wait_for("start", tag="generate first")
    call("skip", "second", {})
    lab.journal.wait_for("start", tag="send second")  # without a file
    lab.open("generate first")
    assert "skipped" in first.parent.get(timeout=DEADLINE)  # nobody sends the file
    lab.open("send second")
    stage.assert_nothing_is_left(lab)
    warning = re.escape("append is a step of a canvas, and may be skipped (unique=Unique('key'))")
    assert len(re.findall(warning, caplog.text)) == 1
    processes = re.findall(rf"WARNING/([\w-]+)\] task \S*{warning}", worker.log)
    assert 1 <= len(processes) == len(set(processes))


@ONCE
def test_a_callback_that_is_linked_to_a_duplicate_is_called(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    holder = hold(lab, "once")
    lab.task("once").apply_async(("k", "duplicate"), link=lab.task("linked").s())
    (linked,) = lab.journal.wait_for("linked")
    assert linked["result"] == skipped(holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("signed for one task", "same call in a chain")
@ONCE
def test_a_replacement_has_the_key_of_what_it_replaces(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    worker = stage.start_worker(lab, slots=4, options=("-Q", "lab"))
    become = lab.task("become")
    replaced = become.delay("k", "first")
    eventually(lambda: become.lock_state("k").is_queued and lab.journal.tags("end"), "its replacement")
    eventually(lambda: lab.doors.hlen("unacked") == 0, "the end of the first")
    assert become.delay("k", "duplicate").existing_id == replaced.id
    consume(lab, worker, "side")
    assert replaced.get(timeout=DEADLINE) == "second"
    assert become.delay("c", "first", True).get(timeout=DEADLINE) == 3
    for key in "kc":
        eventually(lambda key=key: become.lock_state(key).unique_holder is None, "a free key")
    stage.assert_nothing_is_left(lab)
    assert lab.journal.tags(key="k") == ["first", "second"]


@pytest.mark.promise(
    "With results by `rpc://` each duplicate has a result of its own",
    name="results by rpc",
    broke="its caller gets the other one's; red before: a duplicate that should raise was sent",
)
def test_with_results_by_rpc_a_duplicate_has_a_result_of_its_own(
    make_lab: Callable[..., Lab], redis_url: str
) -> None:
    lab = make_lab(module=SHOP, result_backend="rpc://", exclusive_store=redis_url, **LATE)
    lab.start_worker("w1", 3)
    holder = hold(lab, "once")
    duplicate = lab.send("once", "k", "duplicate")
    assert duplicate.id != holder.id
    assert duplicate.get(timeout=DEADLINE) == skipped(holder)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert lab.journal.tags() == ["holder"]


@ONCE
def test_maps_chunks_and_stamps_are_as_celery_makes_them(stage: Stage) -> None:
    """The members of a map are calls in one body, which nobody publishes."""
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    number = lab.task("number")
    pairs = [(1, "k"), (2, "k"), (3, "k")]
    assert number.starmap(pairs).delay().get(timeout=DEADLINE) == [1, 2, 3]
    assert number.chunks(pairs, 2).group().apply_async().get(timeout=DEADLINE) == [[1, 2], [3]]
    stamped = number.s(4, "k")
    stamped.stamp(team="blue")
    assert stamped.apply_async().get(timeout=DEADLINE) == 4
    stage.assert_nothing_is_left(lab)
