"""on_conflict="supersede": as "latest", and the running task is told, interrupted, and ends as skipped."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain
from celery.exceptions import SoftTimeLimitExceeded

from celery_exclusive import Superseded
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_supersede"
DEADLINE = 90
pytestmark = pytest.mark.promise(
    'With `on_conflict="supersede"` the running task is told of a newer call, and ends as skipped with its '
    "id; its retries and replacements do not run; the newest call begins when its lease is over, and never "
    "beside it; after `grace` a prefork worker interrupts its body, and no other one. A body that has "
    "stopped for a call that is gone fails, or is retried",
    name="supersede",
    broke="a retry in line, or a copy of its own message, counts as newer; its retry or replacement "
    "runs; a body that has stopped for nobody is skipped; the signal is raised in the next body; a dead run "
    "begins again after the newest call",
)
ONCE = on_stages("prefork", brokers=("redis",), lates=(True,))


def begin(lab: Lab, name: str, tag: str, key: str = "k", **more: Any) -> Any:
    result = lab.send(name, key, tag=tag, **more)
    lab.journal.wait_for("start", tag=tag)
    return result


def join(lab: Lab, name: str, tag: str, key: str = "k", **options: Any) -> Any:
    """Send a call that joins the line, and does not look when it runs."""
    result = lab.send(name, key, tag=tag, does="end", options=options)
    eventually(lambda: lab.task(name).lock_state(key).place_of(result.id), f"{tag} in line")
    return result


def skipped_for(result: Any) -> str:
    return str(result.get(timeout=DEADLINE)["skipped"]["existing_id"])


def supersede(lab: Lab, worker: Worker, name: str) -> None:
    """Three calls: the first ends for the third, and the second never runs."""
    first = begin(lab, name, "first", hold=True)
    second, third = join(lab, name, "second"), join(lab, name, "third")
    assert skipped_for(second) == third.id
    lab.open("first")
    assert skipped_for(first) == third.id
    assert third.get(timeout=DEADLINE) == "third"
    worker.wait_for_log(f"[{first.id}] skipped: the newer task {third.id} has superseded it at lock x=over:k")
    (told,) = lab.journal.events("told")
    assert (told["tag"], told["superseded"]) == ("first", True)
    assert lab.journal.tags() == ["first", "third"]
    assert lab.journal.most_open() == 1


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        pytest.param(("prefork", "redis", False), "doc", id="prefork-early"),
        pytest.param(("prefork", "redis", True), "doc", id="prefork-late"),
        pytest.param(("threads", "redis", True), "impatient", id="threads, which have no grace"),
    ],
    indirect=["stage"],
)
def test_the_running_task_ends_for_the_newest_call_and_the_one_between_never_runs(
    stage: Stage, name: str
) -> None:
    lab = stage.make_lab(SHOP)
    supersede(lab, stage.start_worker(lab), name)
    stage.assert_nothing_is_left(lab)


@on_stages("prefork", brokers=("rabbitmq",), lates=(True,))
def test_the_running_task_ends_for_the_newest_call_with_rabbitmq_and_a_database(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    lab = stage.make_lab(SHOP, exclusive_store=request.getfixturevalue("postgres_url"))
    supersede(lab, stage.start_worker(lab), "doc")


@ONCE
def test_after_its_grace_a_body_that_does_not_look_is_interrupted_and_may_clean_up(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=4)
    blind = begin(lab, "impatient", "blind", "k1", does="sleep")
    tidy = begin(lab, "impatient", "tidy", "k2", does="sleep")
    after = {key: join(lab, "impatient", f"after {key}", key) for key in ("k1", "k2")}
    assert skipped_for(blind) == after["k1"].id
    assert tidy.get(timeout=DEADLINE) == "tidied up"
    for key, result in after.items():
        assert result.get(timeout=DEADLINE) == f"after {key}"
    assert sorted(lab.journal.tags("interrupted")) == ["blind", "tidy"]
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_superseded_body_may_return_or_fail_and_neither_its_retry_nor_its_replacement_runs(
    stage: Stage,
) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=4)
    ends = {
        "return": "doc",
        "fail": "doc",
        "retry": "doc",
        "retry that keeps the key": "kept",
        "auto": "auto",
        "replace": "doc",
    }
    for does, name in ends.items():
        first = begin(lab, name, does, does, does=does.partition(" ")[0], hold=True)
        newest = join(lab, name, f"after {does}", does)
        lab.open(does)
        if does == "return":
            assert first.get(timeout=DEADLINE) == "return half"
        elif does == "fail":
            with pytest.raises(ValueError, match="as it likes"):
                first.get(timeout=DEADLINE)
        else:
            assert skipped_for(first) == newest.id
        assert newest.get(timeout=DEADLINE) == f"after {does}"
    assert lab.journal.tags() == [tag for does in ends for tag in (does, f"after {does}")]
    stage.assert_nothing_is_left(lab)
    assert lab.doors.llen("collected") == 0


@ONCE
def test_a_body_that_stops_for_a_call_that_is_gone_fails_or_is_retried(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=4)
    told = begin(lab, "doc", "told", "k1", lingers=True)
    interrupted = begin(lab, "impatient", "interrupted", "k2", does="sleep", lingers=True)
    retried = begin(lab, "auto", "retried", "k3", lingers=True)
    newer = [join(lab, "doc", "newer", key) for key in ("k1", "k2", "k3")]
    for what, tag in (("told", "told"), ("interrupted", "interrupted"), ("told", "retried")):
        lab.journal.wait_for(what, tag=tag)
    lab.app.control.revoke([result.id for result in newer])
    for key in ("k1", "k2", "k3"):
        lab.wait_for_line(0, "doc", key)
    lab.open("told, told", "interrupted, told", "retried, told")
    with pytest.raises(Superseded):
        told.get(timeout=DEADLINE)
    with pytest.raises(SoftTimeLimitExceeded):
        interrupted.get(timeout=DEADLINE)
    assert retried.get(timeout=DEADLINE) == "retried again"
    stage.assert_nothing_is_left(lab)
    assert sorted(lab.journal.tags()) == ["interrupted", "retried", "retried", "told"]


@ONCE
def test_a_superseded_step_hands_on_only_a_result_that_was_chosen(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    stage.start_worker(lab, slots=4)
    for name in ("named", "doc"):
        step = lab.task(name).si(name, tag=name, hold=True)
        steps = chain(step, lab.task("collect").s()).apply_async()
        lab.journal.wait_for("start", tag=name)
        join(lab, name, f"after {name}", name)
        lab.open(name)
        if name == "named":
            assert steps.get(timeout=DEADLINE) == "superseded"
        else:
            with pytest.raises(Superseded):
                steps.get(timeout=DEADLINE)
    lab.journal.wait_for("end", tag="after doc")
    assert lab.doors.llen("collected") == 1
    stage.assert_nothing_is_left(lab)


@ONCE
def test_a_superseded_run_that_dies_begins_again_before_the_newest_call(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=2, exclusive_offer=2)
    worker = stage.start_worker(lab, "w1")
    first = begin(lab, "doc", "first", hold=True)
    newest = join(lab, "doc", "newest")
    worker.kill()
    lab.open("first")
    stage.start_worker(lab, "w2")
    assert skipped_for(first) == newest.id
    assert newest.get(timeout=DEADLINE) == "newest"
    assert lab.journal.tags() == ["first", "first", "newest"]
