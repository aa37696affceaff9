"""`locks drop`, `locks put` and `locks.cancel` beside workers that run, and without any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_exclusive import Exclusive, locks
from tests.worker.lab import Lab, command, eventually
from tests.worker.stage import RABBITS, Stage, on_stages

SHOP = "tests.worker.shop_unique"
IN_ORDER = {"options": {"exclusive": Exclusive("key", order="published")}}


def operate(lab: Lab, *words: str, **conf: Any) -> dict[str, Any]:
    done = command(lab, "-q", "locks", *words, "--json", **conf)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "exit": done.returncode}


def hold(lab: Lab, name: str = "wait", **kwargs: Any) -> Any:
    holder = lab.send(name, "k", tag="holder", hold=True, **kwargs)
    lab.journal.wait_for("start", tag="holder")
    return holder


def key_of(lab: Lab, name: str = "wait") -> str:
    return str(lab.task(name).lock_state("k").key)


@pytest.mark.promise(
    "`locks drop` takes waiting tasks out of their line, whether or not workers run, and ends each as "
    "REVOKED; none of them runs, also if its offer is on the way; what runs is not touched",
    name="dropped from the line",
    broke="red before: there was no such command; a drop offers the next in line; copies behind runs dropped",
    also="the differential test, with drops",
)
@pytest.mark.parametrize("is_up", [True, False])
def test_dropped_tasks_end_as_revoked_with_and_without_workers(
    make_lab: Callable[..., Lab], tmp_path: Path, is_up: bool
) -> None:
    lab = make_lab(task_acks_late=True, exclusive_offer=1)
    worker = lab.start_worker("w1", 2)
    holder = hold(lab)
    dropped = [lab.send("wait", "k", tag=f"dropped {n}") for n in range(3)]
    lab.wait_for_line(3, "wait", "k")
    if not is_up:
        worker.kill()
    done = operate(lab, "drop", key_of(lab), "--to", str(tmp_path / "f"), "--yes")
    assert (done["dropped"], done["left"], done["exit"]) == (3, 0, 0), done
    for result in dropped:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=10)
    assert not holder.ready()
    after = lab.send("wait", "k", tag="after")
    lab.open("holder")
    if not is_up:
        freed = command(lab, "locks", "release", key_of(lab), "--force", "--reason", "a test")
        assert freed.returncode == 0, freed.stderr
        lab.start_worker("w2", 2)
    assert after.get(timeout=60) == "after"
    assert not [tag for tag in lab.journal.tags("start") if tag.startswith("dropped")]


@pytest.mark.proves("dropped from the line")
def test_a_chord_whose_member_is_dropped_fails_as_with_a_revoked_member(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(task_acks_late=True)
    lab.start_worker("w1", 4)
    hold(lab)
    wait, plain = lab.task("wait"), lab.task("plain")
    outcomes = []
    for way in ("revoked", "dropped"):
        member = wait.s("k", tag=way).set(task_id=way)
        result = chord([plain.s(tag=f"other of {way}"), member])(plain.si(tag=f"body of {way}"))
        lab.wait_for_line(1, "wait", "k")
        if way == "revoked":
            lab.app.control.revoke(way)
        else:
            operate(lab, "drop", key_of(lab), "--to", str(tmp_path / "f"), "--yes")
        eventually(lambda: result.state == "FAILURE", "the end of the chord")  # noqa: B023 - at once
        assert isinstance(result.result, ChordError)
        lab.wait_for_line(0, "wait", "k")
        outcomes.append((str(result.result).partition(" raised ")[0], lab.app.AsyncResult(way).state))
    assert outcomes == [(f"Dependency {way}", "REVOKED") for way in ("revoked", "dropped")]
    assert not [tag for tag in lab.journal.tags("start") if tag.startswith("body")]


@pytest.mark.proves("dropped from the line")
def test_a_chain_whose_step_is_dropped_stops_and_its_unique_key_is_free(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=SHOP)
    lab.start_worker("w1", 4)
    hold(lab, "both", options={"unique": None})
    steps = chain(lab.task("both").s("k", tag="dropped"), lab.task("once").si("other", tag="next"))()
    lab.wait_for_line(1, "both", "k")
    assert lab.send("both", "k", tag="duplicate").outcome == "skipped"
    assert locks.cancel(steps.parent.id, reason="not wanted", app=lab.app)
    with pytest.raises(TaskRevokedError, match="not wanted"):
        steps.parent.get(timeout=10)
    assert not locks.cancel(steps.parent.id, app=lab.app), "it does not wait any more"
    newer = lab.send("both", "k", tag="newer")
    assert newer.outcome == "published"
    lab.open("holder")
    assert newer.get(timeout=60) == "newer"
    assert lab.journal.tags("start") == ["holder", "newer"]
    assert steps.state == "PENDING", "as after a revoke"


@pytest.mark.promise(
    "`locks put` publishes dropped tasks again, with their ids and results, at the end of their lines, also "
    "on another store and broker",
    broke="old publish ids: redelivered copies are dropped; results not set back",
)
@RABBITS[0]
@pytest.mark.parametrize("name", ["redis", "postgres", "sqlite"])
def test_a_line_moves_to_another_broker_and_store(
    make_lab: Callable[..., Lab],
    make_rabbit_lab: Callable[..., Lab],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    name: str,
) -> None:
    lab = make_lab(task_compression="zlib", exclusive_secret="a secret of 16 or more")
    worker = lab.start_worker("w1", 2)
    hold(lab)
    results = [lab.send("wait", "k", tag=f"{n} é" * 400) for n in range(3)]
    lab.wait_for_line(3, "wait", "k")
    assert (
        operate(lab, "drop", "--task", "tests.worker.shop.wait", "--to", str(tmp_path / "f"), "--yes")["exit"]
        == 0
    )
    worker.kill()
    urls = {"sqlite": f"sqlite:///{tmp_path}/locks.db", "redis": lab.url[:-1] + "5"}
    store = urls.get(name) or request.getfixturevalue(f"{name}_url")
    new = make_rabbit_lab({}, exclusive_store=store, exclusive_secret="a secret of 16 or more")
    new.conf["task_compression"] = "zlib"
    put = operate(new, "put", str(tmp_path / "f"))
    assert (put["put"], put["exit"]) == (3, 0), put
    new.start_worker("w2", 2)
    assert [new.app.AsyncResult(result.id).get(timeout=60) for result in results] == [
        f"{n} é" * 400 for n in range(3)
    ]
    assert [event["id"] for event in new.journal.events("start")[1:]] == [result.id for result in results]


@pytest.mark.promise(
    'A call with `order="published"` that is dropped while its message is in a queue does not run when a '
    "worker receives the message",
    broke="no tombstone: it runs",
)
@on_stages("prefork", lates=(False,))
def test_a_dropped_call_whose_message_is_in_a_queue_does_not_run(stage: Stage) -> None:
    lab = stage.make_lab("tests.worker.shop")
    first, second = (lab.send("wait", "k", tag=tag, **IN_ORDER) for tag in ("first", "second"))
    assert operate(lab, "drop", key_of(lab), "--discard", "--yes")["dropped"] == 2
    assert [result.state for result in (first, second)] == ["REVOKED"] * 2
    lab.start_worker("w1", 2)
    assert lab.send("wait", "k", tag="after", **IN_ORDER).get(timeout=60) == "after"
    assert lab.journal.tags("start") == ["after"]
    assert [lab.app.AsyncResult(result.id).state for result in (first, second)] == ["REVOKED"] * 2


@pytest.mark.promise(
    "Each task of a line that two `locks drop` and its workers empty at the same time runs, or is dropped by "
    "one of the two, and never both",
    broke="the answer of the removal not looked at: tasks that ran end as REVOKED",
    also="`cli/test_drop.py::test_a_task_whose_turn_has_come_meanwhile_is_not_dropped_and_not_put`",
)
def test_two_drops_and_the_workers_of_a_line_end_each_task_once(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(task_acks_late=True, exclusive_offer=1)
    lab.start_worker("w1", 4)
    hold(lab)
    results = {(result := lab.send("wait", "k", tag=str(n))).id: result for n in range(200)}
    lab.wait_for_line(200, "wait", "k")
    words = ["locks", "drop", key_of(lab), "--yes", "--to"]
    drops = [start(lab, *words, str(tmp_path / f"f{n}")) for n in range(2)]
    lab.open("holder")
    assert [drop.wait(timeout=100) for drop in drops] == [0, 0] or lab.waiting("wait", "k") == 0
    ended = [
        record["ended"].partition("/")[0]
        for n in range(2)
        if (tmp_path / f"f{n}").exists()
        for record in map(json.loads, (tmp_path / f"f{n}").read_text().splitlines())
        if "ended" in record
    ]
    assert len(ended) == len({*ended}), "one of the two has ended it"
    ran = [id for id in results if id not in ended]
    for id in ran:
        results[id].get(timeout=60)
    started = [event["id"] for event in lab.journal.events("start")[1:]]
    assert sorted(started) == sorted(ran)
    assert all(results[id].state == "REVOKED" for id in ended)


@pytest.mark.proves("killed drop")
def test_a_drop_that_is_killed_in_the_middle_is_completed_by_the_same_command(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(task_acks_late=True)
    lab.start_worker("w1", 4)
    hold(lab)
    results = [lab.send("wait", "k", tag=str(n)) for n in range(400)]
    lab.wait_for_line(400, "wait", "k")
    file = tmp_path / "f"
    words = ["drop", key_of(lab), "--yes", "--to", str(file)]
    drop = start(lab, "locks", *words)
    eventually(lambda: file.exists() and file.read_bytes().count(b'"ended"') > 20, "a drop under way")
    drop.kill()
    drop.wait()
    assert {*lab.line("wait", "k"), *saved_in(file)} == {result.id for result in results}
    assert operate(lab, *words)["exit"] == 0
    assert lab.waiting("wait", "k") == 0
    assert {result.state for result in results} == {"REVOKED"}
    lab.open("holder")
    put = operate(lab, "put", str(file))
    assert (put["put"], put["exit"]) == (400, 0), put
    for result in results:  # this process has heard that they were revoked: it asks the backend itself
        eventually(lambda: stored(lab, result.id) == "SUCCESS", "its result")  # noqa: B023 - at once
    started = [event["id"] for event in lab.journal.events("start")[1:]]
    assert started == list(dict.fromkeys(saved_in(file)))


def stored(lab: Lab, id: str) -> str:
    return str(lab.app.backend.get_task_meta(id, cache=False)["status"])


def start(lab: Lab, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", lab.module, *words],
        env=lab.environment,
        cwd=lab.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def saved_in(file: Path) -> list[str]:
    """Return the ids of the tasks that a file has, without a line that is not finished."""
    lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [fields["saved"].partition("/")[0] for fields in lines if "saved" in fields]
