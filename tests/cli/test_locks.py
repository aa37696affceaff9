"""`celery -A proj locks`, as an operator starts it beside workers that run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive.errors import LockHeld
from tests.worker.journal import eventually
from tests.worker.lab import Lab, command


def locks(lab: Lab, *words: str, **conf: Any) -> subprocess.CompletedProcess[str]:
    return command(lab, "locks", *words, **conf)


def listed(lab: Lab, *words: str) -> list[dict[str, Any]]:
    done = locks(lab, "ls", "--json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.promise(
    "An operator sees which task holds which lock, for people and as JSON",
    name="locks ls",
    broke="aside not counted; PREFIX only of whole keys",
    figure="by hand: 10,000 keys in 1.7 s",
)
@pytest.mark.promise(
    "A running holder, and a dead one before its ttl, lose a lock only by force; then the next starts at "
    "once, and the loser's end reports it",
    name="force",
    broke="no refusal; force that breaks no lease; wakes not published",
)
def test_a_running_holder_loses_its_lock_only_by_force_and_the_next_in_line_starts_at_once(
    make_lab: Callable[..., Lab],
):
    an_hour = 3600  # for an offer: nobody else calls the next one in the time of this test
    lab = make_lab(
        task_acks_late=True, task_reject_on_worker_lost=True, exclusive_ttl=60, exclusive_offer=an_hour
    )
    worker = lab.start_worker()
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    second = lab.send("wait", "k", tag="second", hold=True)
    lab.wait_for_line(1, "wait", "k")
    state = lab.task("wait").lock_state("k")

    (lock,) = listed(lab)
    (holder,), (in_line,) = lock.pop("holders"), lock.pop("line")
    assert in_line["age"] >= 0
    assert lock.pop("room") == {"limit": 1, "is_known": True, "override": None, "opens_in": None, "rates": []}
    assert lock == {
        "key": state.key,
        "task": "tests.worker.shop.wait",
        "state": "running",
        "waiting": 1,
        "aside": 0,
        "args": "key='k'",
        "other_holders": 0,
        "queue": "lab",
        "problem": "",
        "max_waiting": None,
        "shut": 0,
        "parts": [],
        "other_parts": 0,
    }
    assert holder.pop("task_id") == first.id
    assert holder.pop("fence") == lab.journal.events("start", tag="first")[0]["fence"]
    assert 0 < holder.pop("remaining") <= 60
    assert state.holders[0].age <= holder.pop("age")
    assert [one["nodename"] for one in holder.pop("workers")] == [worker.name]
    assert 0 <= holder.pop("renewed") <= 60
    assert holder == {"phase": "running", "deaths": 0, "is_queued": False}
    assert [lock["key"] for lock in listed(lab, "tests.worker.shop.w")] == [state.key]
    assert listed(lab, "tests.worker.shop.skip") == []

    refused = locks(lab, "release", state.key)
    assert refused.returncode == 1
    assert first.id in refused.stderr
    assert "--force" in refused.stderr
    assert [holder.task_id for holder in lab.task("wait").lock_state("k").holders] == [first.id]

    done = locks(lab, "release", state.key, "--force", "--reason", "a test")
    assert (done.returncode, first.id in done.stdout, second.id in done.stdout) == (0, True, True), done
    lab.journal.wait_for("start", tag="second")
    assert not lab.journal.events("end")
    lab.open("first")
    worker.wait_for_log(f"{first.id}] lost its lease")
    assert [lock["holders"][0]["task_id"] for lock in listed(lab)] == [second.id]
    lab.open("second")
    eventually(lambda: not lab.task("wait").lock_state("k").holders, "a free key")
    assert listed(lab) == []


@pytest.mark.promise(
    "A lock that is released by force is not offered to the copy of the task that holds it, unless only "
    "the store has that copy",
    name="forced release",
    broke="red before: late ack, a holder that had waited ran a second time beside itself",
)
def test_a_task_that_had_waited_and_loses_its_lock_by_force_does_not_run_beside_itself(
    make_lab: Callable[..., Lab],
):
    lab = make_lab(
        task_acks_late=True, task_reject_on_worker_lost=True, exclusive_ttl=3600, exclusive_offer=1
    )
    lab.start_worker()
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    second = lab.send("wait", "k", tag="second", hold=True)
    lab.wait_until_in_line(second.id, "wait", "k")
    lab.open("first")
    lab.journal.wait_for("start", tag="second")
    assert first.get(timeout=60) == "first"
    done = locks(lab, "release", lab.task("wait").lock_state("k").key, "--force", "--reason", "a test")
    assert (done.returncode, second.id in done.stdout) == (0, True), done
    assert not listed(lab)
    assert lab.send("wait", "k", tag="third").get(timeout=60) == "third"
    lab.open("second")
    assert second.get(timeout=60) == "second"
    assert lab.journal.tags("start") == ["first", "second", "third"]


@pytest.mark.proves("force")
def test_a_dead_holder_loses_its_lock_only_by_force_and_long_before_its_ttl(make_lab: Callable[..., Lab]):
    lab = make_lab(task_acks_late=True, task_reject_on_worker_lost=True, exclusive_ttl=3600)
    doomed = lab.start_worker("doomed")
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    lab.start_worker("other")
    lab.send("wait", "k", tag="second")
    lab.wait_for_line(1, "wait", "k")
    doomed.kill()
    key = lab.task("wait").lock_state("k").key

    assert locks(lab, "release", key).returncode == 1
    with pytest.raises(LockHeld, match=first.id) as refusal:
        lab.task("wait").release_lock("k")
    assert (refusal.value.key, refusal.value.holder) == (key, first.id)
    assert not lab.journal.events("start", tag="second")

    done = locks(lab, "release", key, "--force", "--reason", "a test")
    assert done.returncode == 0, done.stderr
    lab.journal.wait_for("end", tag="second")


@pytest.mark.promise(
    "`celery locks` says what is wrong in one line, without password or traceback",
    name="errors of the command",
    broke="errors not turned into exit 1; a failing import fatal",
)
def test_a_store_that_does_not_answer_is_said_in_one_line_without_its_password(make_lab: Callable[..., Lab]):
    lab = make_lab()
    for words in (("ls",), ("release", "k")):
        done = locks(lab, *words, exclusive_store="redis://:secret@127.0.0.1:1/0")
        assert done.returncode == 3
        assert done.stdout == ""
        where, error = done.stderr.splitlines()
        assert "redis://:**@127.0.0.1:1/0" in where
        assert error.startswith("Error: store redis://:**@127.0.0.1:1/0 does not answer")
        assert "secret" not in done.stderr


@pytest.mark.proves("release queued keys")
def test_after_a_purge_all_keys_of_a_task_are_released_at_once(make_lab: Callable[..., Lab]):
    lab = make_lab(module="tests.worker.shop_unique")
    lost = [lab.send("once", key) for key in "abc"]
    assert command(lab, "purge", "-f").returncode == 0
    assert [lab.send("once", key).outcome for key in "abc"] == ["skipped"] * 3
    done = locks(lab, "release", "--queued", "--yes", "tests.worker.shop_unique.once")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "released 3 of 3"), done
    again = [lab.send("once", key) for key in "abc"]
    assert [result.outcome for result in again] == ["published"] * 3
    assert not {result.id for result in lost} & {result.id for result in again}
