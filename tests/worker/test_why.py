"""`locks why` beside real workers: from the id of a task to the reason why it does not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import locks
from celery_exclusive.operate.answers import Answer
from tests.worker.journal import eventually
from tests.worker.lab import Lab, Worker, command


@pytest.fixture(params=["redis", "postgres"])
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Lab:
    """A lab with leases on its broker's Redis, or in a database."""
    if request.param == "redis":
        return make_lab(task_acks_late=True)
    request.getfixturevalue("postgres_database").empty()
    return make_lab(task_acks_late=True, exclusive_store=request.getfixturevalue("postgres_url"))


def why(lab: Lab, result: Any, reason: str | None = None) -> Answer:
    """Return the answer for a task; with a reason, as soon as it is that."""

    def ask() -> Answer | None:
        answer = locks.why(result.id, app=lab.app)
        return answer if reason in (None, answer.reason) else None

    found: Answer = eventually(ask, f"{result.id} {reason}")
    return found


def on(worker: Worker) -> str:
    return f"on {worker.name} pid {worker.pid}"


@pytest.mark.proves("locks why")
def test_the_reason_of_each_call_is_found_by_its_id(lab: Lab) -> None:
    worker = lab.start_worker(concurrency=2)
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    answer = why(lab, first)
    assert answer.reason == "running"
    assert answer.sentence.startswith(f"RUNNING {on(worker)}, for ")
    assert "it holds x:tests.worker.shop.wait:" in answer.sentence
    assert "(key='k'), renewed " in answer.sentence  # acknowledged late: the store has its message

    second, third = (lab.send("wait", "k", tag=tag) for tag in ("second", "third"))
    lab.wait_for_line(2, "wait", "k")
    place = {id: lab.task("wait").lock_state("k").place_of(id) for id in (second.id, third.id)}
    assert sorted(place.values()) == [1, 2]
    answer = why(lab, third)
    assert answer.sentence.startswith(f"WAITING: place {place[third.id]} of 2 for x:tests.worker.shop.wait:")
    assert f"held by {first.id} {on(worker)} for " in answer.sentence
    done = command(lab, "locks", "why", third.id)
    assert (done.returncode, done.stdout.startswith(f"WAITING: place {place[third.id]} of 2")) == (0, True)
    lab.open("first")
    assert third.get(timeout=60) == "third"
    assert "FINISHED at 20" in why(lab, third, "finished").sentence

    held = lab.send("skip", "s", tag="held", hold=True)
    lab.journal.wait_for("start", tag="held")
    skipped = lab.send("skip", "s", tag="skipped")
    assert skipped.get(timeout=60)["skipped"]["existing_id"] == held.id
    answer = why(lab, skipped)
    assert answer.reason == "held"
    assert answer.sentence.startswith("SKIPPED at 20")
    assert answer.sentence.endswith(f"was held by {held.id}")
    lab.open("held")


@pytest.mark.proves("locks why")
def test_a_call_is_queued_until_a_worker_begins_it(lab: Lab, make_lab: Callable[..., Lab]) -> None:
    unique = make_lab(module="tests.worker.shop_unique", exclusive_store=lab.conf.get("exclusive_store"))
    once, both = (unique.send(name, "k", tag=name, hold=True) for name in ("once", "both"))
    answer = why(unique, once)
    assert answer.reason == "queued"
    assert "is held for its message" in answer.sentence
    answer = why(unique, both)  # where one Redis has all, it has its place since it was published
    is_ordered = "exclusive_store" not in lab.conf
    assert ("since it was published" in answer.sentence) is is_ordered
    assert answer.reason == "queued"
    worker = unique.start_worker()
    for result, key in ((once, "u:"), (both, "x:")):
        unique.journal.wait_for("start", id=result.id)
        answer = why(unique, result)
        assert answer.sentence.startswith(f"RUNNING {on(worker)}")
        assert answer.key is not None
        assert answer.key.key.startswith(key)
    unique.open("once", "both")


@pytest.mark.proves("locks why")
def test_the_run_of_a_dead_worker_is_told_with_its_worker(lab: Lab) -> None:
    lab.conf["exclusive_ttl"] = 1
    doomed = lab.start_worker("doomed")
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    doomed.kill()
    eventually(lambda: why(lab, first).is_trouble, "the expired lease")
    assert (
        f"RUNNING, but its lease has expired: doomed@lab pid {doomed.pid} has died"
        in why(lab, first).sentence
    )
    assert command(lab, "locks", "why", first.id).returncode == 1
