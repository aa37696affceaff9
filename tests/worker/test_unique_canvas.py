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

from celery_exclusive import Conflict, DuplicateTask, Exclusive, Unique
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


def test_a_duplicate_step_of_a_chain_waits_for_the_other_and_hands_its_result_on(lab: Lab) -> None:
    append = lab.task("append")
    holder = append.apply_async(kwargs={"key": "k", "tag": "holder", "hold": True})
    lab.journal.wait_for("start", tag="holder")
    chains = []
    for place in range(3):
        steps = [append.s(key=f"{place}{n}", tag=f"{place}{n}") for n in range(3)]
        steps[place] = append.s(key="k", tag="duplicate")
        chains.append(chain(steps).apply_async())
        eventually(lambda many=place + 1: append.lock_state(key="k", tag="").waiting == many, "its place")
    assert lab.journal.tags() == ["holder", "10", "20", "21"]
    lab.open("holder")
    results = [result.get(timeout=DEADLINE) for result in chains]
    assert results == [["holder", "01", "02"], ["holder", "12"], ["holder"]]
    assert holder.get(timeout=DEADLINE) == ["holder"]
    assert sorted(lab.journal.tags()) == ["01", "02", "10", "12", "20", "21", "holder"]


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


def test_the_members_of_a_group_share_one_run(lab: Lab) -> None:
    append = lab.task("append")
    same = group(append.s(key="k", tag=f"same {n}", hold=True) for n in range(3)).apply_async()
    (start,) = lab.journal.wait_for("start")
    eventually(lambda: append.lock_state(key="k", tag="").waiting == 2, "the others in line")
    lab.open(start["tag"])
    assert same.get(timeout=DEADLINE) == [[start["tag"]]] * 3
    assert lab.journal.tags() == [start["tag"]]


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
    "No step of a canvas hands the result of a skip on that its author has not chosen: a second chain fails "
    'with `on_conflict="raise"`, with `Exclusive(on_conflict="skip")`, until "started" and with a period, '
    "and is warned of where it was not asked for, once per task and process",
    name="skipped steps",
    broke="no warning; the duplicate of a step with `Unique` or `Exclusive` skipped in place of the error",
)
@ONCE
def test_a_second_chain_whose_step_can_neither_run_nor_wait_fails(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=4)
    append = lab.task("append")

    def call(name: str, tag: str, options: dict[str, Any]) -> Any:
        """Call a chain that generates a file and sends it."""
        generate = append.s(key=f"{name} generate", tag=f"generate {tag}", hold=True).set(**options)
        return chain(generate, append.s(key=f"send {tag}", tag=f"send {tag}")).apply_async()

    for name, option in {
        "raise": {"unique": Unique("key", on_conflict="raise")},
        "locked": {"unique": None, "exclusive": Exclusive("key", on_conflict="raise")},
        "seldom": {"unique": Unique("key", period=600)},
        "skip": {"unique": None, "exclusive": Exclusive("key", on_conflict="skip")},
    }.items():
        first = call(name, f"{name} first", option)
        lab.journal.wait_for("start", tag=f"generate {name} first")
        warned = append.name in caplog.text
        assert warned == (name in ("seldom", "skip"))
        with pytest.raises(Conflict):
            call(name, f"{name} second", option).get(timeout=DEADLINE)
        lab.open(f"generate {name} first")
        assert first.get(timeout=DEADLINE) == [f"generate {name} first", f"send {name} first"]
    warning = re.escape("append is a step of a canvas (unique=Unique('key', period=600)): if its key is held")
    assert len(re.findall(warning, caplog.text)) == 1
    assert len(re.findall("is a step of a canvas", worker.log)) <= 4  # of each process at most one


@ONCE
def test_a_callback_that_is_linked_to_a_duplicate_gets_the_result_of_the_other(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=3)
    holder = hold(lab, "once")
    lab.task("once").apply_async(("k", "duplicate"), link=lab.task("linked").s())
    lab.wait_for_line(1, "once", "k")
    assert not lab.journal.events("linked")
    lab.open("holder")
    (linked,) = lab.journal.wait_for("linked")
    assert linked["result"] == "holder"
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
    "With results by `rpc://` each duplicate has a result of its own, and a duplicate step fails",
    name="results by rpc",
    broke=(
        "its caller gets the other one's; a duplicate step waits for it; red before: a duplicate that "
        "should raise was sent"
    ),
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
    once = lab.task("once")
    with pytest.raises(DuplicateTask, match=f"is held by {holder.id}"):
        chain(once.s("k", "step"), once.s("never")).apply_async().get(timeout=DEADLINE)
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
