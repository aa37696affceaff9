"""Each outcome of a task at its lock reaches the receivers of its process, and the fields of its log line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import LockHeld
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.stage import Stage, on_stages

SHOP = "tests.worker.shop_outcomes"
DEADLINE = 60
pytestmark = pytest.mark.usefixtures("no_receivers")


def held(lab: Lab, name: str) -> Any:
    """Let a task hold the key "k" until its door is opened, and return its result."""
    result = lab.send(name, "k", tag=name, hold=True)
    lab.journal.wait_for("start", tag=name)
    return result


def outcome(lab: Lab, kind: str, id: str | None) -> dict[str, Any]:
    (found,) = lab.journal.wait_for("outcome", kind=kind, task_id=id)
    return found


@pytest.mark.promise(
    "Each outcome of a task at its lock reaches the receivers of `lock_outcome`, and the fields of its log "
    "line; within the run, if it has one. The error of a receiver ends no task",
    name="outcomes",
    broke="sent before the run; a line without fields; `released` after `lost`; not told at the end of a run "
    "without a body",
)
@on_stages("prefork", "threads", "gevent", brokers=("redis",), lates=(True,))
def test_each_conflict_of_a_worker_is_an_outcome_with_the_fields_of_its_line(stage: Stage) -> None:
    lab = stage.make_lab(SHOP)
    worker = stage.start_worker(lab, slots=4)
    for name in ("wait", "skip", "strict", "later", "hasty", "newest", "full"):
        check = CHECKS[name]
        holder = held(lab, name)
        ids = check(lab, worker, holder.id)
        lab.open(name)
        assert holder.get(timeout=DEADLINE) == name
        begun, ended = outcome(lab, "acquired", holder.id), outcome(lab, "released", holder.id)
        assert begun["sender"] == begun["task_name"] == f"{SHOP}.{name}"
        assert begun["current"] == holder.id
        assert ended["held_s"] > 0
        key = lab.task(name).lock_state("k").key
        for kind, id, reason in ids:
            seen = outcome(lab, kind, id)
            assert (seen["reason"], seen["lock_key"]) == (reason, key)
            assert seen["current"] in (None, id)
            if kind != "refused":  # Celery logs its error
                (line,) = lab.journal.wait_for("line", outcome=kind, task_id=id)
                names = ("task_name", "lock_key", "reason", "holder_id", "place", "held_s", "wait_s")
                assert [line[name] for name in names] == [seen[name] for name in names]
    assert "a receiver that fails" in worker.log


@pytest.mark.proves("outcomes")
def test_a_call_that_its_publisher_puts_into_the_line_waits(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP)
    lab.start_worker("w1", 2)
    held(lab, "ordered")
    waits = lab.send("ordered", "k")
    seen = outcome(lab, "waited", waits.id)
    assert (seen["reason"], seen["place"], seen["holder_id"]) == ("in_line", 1, None)
    lab.open("ordered")
    assert waits.get(timeout=DEADLINE) == ""
    assert outcome(lab, "acquired", waits.id)["current"] == waits.id
    assert not lab.journal.events("line", task_id=waits.id)


def _waits(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    first, second = (lab.send("wait", "k") for _ in range(2))
    places = {outcome(lab, "waited", result.id)["place"] for result in (first, second)}
    assert places == {1, 2}
    lab.journal.wait_for("outcome", kind="waited", task_id=first.id, holder_id=holder)
    return [("waited", first.id, "in_line"), ("waited", second.id, "in_line")]


def _is_skipped(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    result = lab.send("skip", "k")
    assert result.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder
    seen = outcome(lab, "skipped", result.id)
    assert (seen["holder_id"], seen["current"]) == (holder, result.id)
    assert seen["held_s"] > 0
    return [("skipped", result.id, "held")]


def _is_refused(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    result = lab.send("strict", "k")
    with pytest.raises(LockHeld):
        result.get(timeout=DEADLINE)
    return [("refused", result.id, "held")]


def _comes_later(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    result = lab.send("later", "k")
    outcome(lab, "waited", result.id)
    lab.open("later")
    assert result.get(timeout=DEADLINE) == ""
    assert outcome(lab, "acquired", result.id)["wait_s"] > 0
    return [("waited", result.id, "held")]


def _gives_up(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    result = lab.send("hasty", "k")
    assert result.get(timeout=DEADLINE)["skipped"]
    assert outcome(lab, "given_up", result.id)["wait_s"] == 0.5
    return [("waited", result.id, "in_line"), ("given_up", result.id, "given_up")]


def _is_replaced(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    older = lab.send("newest", "k")
    outcome(lab, "waited", older.id)
    newer = lab.send("newest", "k")
    assert older.get(timeout=DEADLINE)["skipped"]
    assert outcome(lab, "replaced", older.id)["holder_id"] == newer.id
    return [("replaced", older.id, "replaced"), ("waited", newer.id, "in_line")]


def _finds_a_full_line(lab: Lab, worker: Worker, holder: str) -> list[tuple[str, str, str]]:
    first = lab.send("full", "k")
    outcome(lab, "waited", first.id)
    second = lab.send("full", "k")
    with pytest.raises(LockHeld):
        second.get(timeout=DEADLINE)
    assert outcome(lab, "full", second.id)["reason"] == "full"
    return [("waited", first.id, "in_line")]


CHECKS: dict[str, Callable[[Lab, Worker, str], list[tuple[str, str, str]]]] = {
    "wait": _waits,
    "skip": _is_skipped,
    "strict": _is_refused,
    "later": _comes_later,
    "hasty": _gives_up,
    "newest": _is_replaced,
    "full": _finds_a_full_line,
}


@pytest.mark.proves("outcomes")
def test_a_lost_lease_a_duplicate_and_a_recovery_are_outcomes(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=SHOP, task_acks_late=True, exclusive_ttl=2)
    worker = lab.start_worker("w1", 2)
    loser = held(lab, "wait")
    lab.task("wait").release_lock("k", force=True)
    (forced,) = lab.journal.wait_for("outcome", kind="forced")
    assert (forced["sender"], forced["holder_id"]) == (None, loser.id)
    lab.open("wait")
    assert loser.get(timeout=DEADLINE) == "wait"
    assert outcome(lab, "lost", loser.id)["held_s"] > 0
    assert not lab.journal.events("outcome", kind="released", task_id=loser.id)
    first = held(lab, "sole")
    assert lab.send("sole", "k").existing_id == first.id
    refused = outcome(lab, "duplicate", None)
    assert (refused["sender"], refused["holder_id"], refused["reason"]) == (
        f"{SHOP}.sole",
        first.id,
        "duplicate",
    )
    worker.kill()
    lab.start_worker("w2", 2)
    assert outcome(lab, "recovered", first.id)["sender"] == f"{SHOP}.sole"
    lab.open("sole")
    assert first.get(timeout=DEADLINE) == "sole"
    assert len(lab.journal.wait_for("outcome", 2, kind="acquired", task_id=first.id)) == 2
    eventually(lambda: lab.messages_at_the_broker() <= 1, "no message but the copy of the dead run")
