"""A line that is full: who is sent away, who never is, and who is told that it grows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError

from celery_exclusive import Exclusive, LockHeld, notices
from celery_exclusive.core.operations import Acquire
from celery_exclusive.publishing import long_lines
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message, wait_for_lines
from tests.worker.nursery import DEATH_OF_PARENT

ARRIVED, PUBLISHED = ({"exclusive": Exclusive("key", order=order)} for order in ("arrived", "published"))
DEADLINE = 60
SECOND = 1_000_000


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(module="tests.worker.shop_full")


def fill(lab: Lab, name: str) -> Any:
    """Let one hold the key "k" and one wait for it; return the holder's result."""
    holder = lab.send(name, key="k", tag="holder", hold=True)
    lab.journal.wait_for("start", id=holder.id)
    lab.send(name, key="k", tag="first")
    lab.wait_for_line(1, name, "k")
    return holder


@pytest.mark.promise(
    "A task that finds the line full fails, which ends chain and chord, or is skipped; never a retry, a "
    "redelivered message, or a task behind its own run",
    name="full line",
    broke="each exemption removed; `max_waiting` ignored; raise acts as skip",
)
def test_a_task_that_finds_the_line_full_fails_and_so_do_its_chain_and_its_chord(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    holder, loud, collect = fill(lab, "loud"), lab.task("loud"), lab.task("collect")
    refused = loud.delay(key="k", tag="refused")
    with pytest.raises(LockHeld) as error:
        refused.get(timeout=DEADLINE)
    for words in ("task tests.worker.shop_full.loud", ": 1 waiting", f"held by {holder.id} for "):
        assert words in str(error.value)
    assert error.value.holder == holder.id
    assert error.value.key == loud.lock_state(key="k").key
    assert refused.state == "FAILURE"
    with pytest.raises(LockHeld):
        chain(loud.si(key="k", tag="refused"), collect.s()).apply_async().get(timeout=DEADLINE)
    members = [loud.s(key="k", tag="refused"), loud.s(key="another", tag="member")]
    body = chord(members)(collect.s())
    eventually(lambda: body.state == "FAILURE", "the end of the chord")
    assert isinstance(body.result, ChordError)
    assert "LockHeld" in str(body.result)
    lab.open("holder")
    lab.journal.wait_for("end", tag="first")
    assert sorted(lab.journal.tags("start")) == ["first", "holder", "member"]


@pytest.mark.proves("full line")
def test_a_task_that_finds_the_line_full_may_be_skipped(lab: Lab) -> None:
    worker = lab.start_worker("w1", 3)
    holder = fill(lab, "quiet")
    skipped = lab.send("quiet", key="k", tag="skipped")
    result = skipped.get(timeout=DEADLINE)
    assert result == {"skipped": {"key": lab.task("quiet").lock_state("k").key, "existing_id": holder.id}}
    line = worker.wait_for_log(f"[{skipped.id}] skipped: ")
    assert "INFO/" in line
    assert "(key='k') is full, with 1 waiting; " in line
    assert f"held by {holder.id} for " in line
    lab.open("holder")
    lab.journal.wait_for("end", tag="first")
    assert lab.journal.tags("start") == ["holder", "first"]


@pytest.mark.proves("full line")
def test_the_setting_is_for_tasks_that_wait_and_give_no_number(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module="tests.worker.shop_full", exclusive_max_waiting=2)
    lab.start_worker("w1", 4)
    fill(lab, "by_setting")
    fill(lab, "loud")
    lab.send("by_setting", key="k", tag="second")
    lab.wait_for_line(2, "by_setting", "k")
    with pytest.raises(LockHeld):
        lab.send("by_setting", key="k", tag="third").get(timeout=DEADLINE)
    with pytest.raises(LockHeld):
        lab.send("loud", key="k", tag="second").get(timeout=DEADLINE)


@pytest.mark.proves("full line")
def test_retries_and_redelivered_messages_are_never_sent_away(
    make_lab: Callable[..., Lab], acks: dict[str, Any]
) -> None:
    lab = make_lab(module="tests.worker.shop_full", **acks)
    redelivered = Message.withheld(lab, "again", key="k", tag="redelivered", options={"retries": 0})
    lab.start_worker("w1", 4)
    holder = lab.send("again", key="k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder0")
    lab.send("loud", key="k", tag="other")  # another task has another line
    waits = lab.send("again", key="k", tag="waits")
    lab.wait_for_line(1, "again", "k")
    lab.send("again", key="k", tag="late", options={"retries": 1})
    lab.wait_for_line(2, "again", "k")
    redelivered.deliver_again()
    lab.wait_for_line(3, "again", "k")
    with pytest.raises(LockHeld):
        lab.send("again", key="k", tag="refused").get(timeout=DEADLINE)
    lab.open("holder0")
    for result in (holder, waits, redelivered.result):
        assert result.get(timeout=DEADLINE) == 1
    assert sorted(lab.journal.tags("start", key="k")) == sorted(
        ["holder0", "holder1", "waits0", "waits1", "late1", "redelivered0", "redelivered1", "other"]
    )


@pytest.mark.proves("full line")
def test_a_task_is_not_refused_for_a_line_that_is_full_behind_its_own_run(lab: Lab) -> None:
    lab.start_worker("w1", 4)
    loud = lab.task("loud")
    steps = chain(
        loud.si(key="k", tag="a", hold=True, linger=2), loud.si(key="k", tag="b"), lab.task("collect").s()
    )
    result = steps.apply_async()
    lab.journal.wait_for("start", tag="a")
    loud.delay(key="k", tag="first")
    lab.wait_for_line(1, "loud", "k")
    lab.open("a")
    assert result.get(timeout=DEADLINE) == "b"
    assert lab.journal.tags("start", key="k") == ["a", "first", "b"]


@pytest.mark.promise(
    "A line of 100, 1,000 and 10,000 waiting tasks is warned of, once a minute per process",
    name="long lines",
    broke="every number above 100; no memory",
)
def test_a_task_that_joins_as_number_100_1000_or_10000_is_warned_of(lab: Lab) -> None:
    worker = lab.start_worker("w1", 2)
    lab.send("by_setting", key="k", tag="holder", hold=True, options=ARRIVED)
    lab.journal.wait_for("start", tag="holder")
    key, store = lab.task("by_setting").lock_state("k").key, lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    waiting = 0
    for mark in (100, 1_000, 10_000):
        for number in range(waiting, mark - 2):
            store.apply(key, Acquire(f"{number}/0", "token", SECOND, message=b"{}"))
        for _ in range(3):
            lab.send("by_setting", key="k", tag="waits", options=ARRIVED)
        waiting = mark + 1
        lab.wait_for_line(waiting, "by_setting", "k")
        worker.wait_for_log(f"number {waiting} in line")
    warnings = [line for line in worker.log.splitlines() if " wait in line for lock " in line]
    assert [line.partition("] ")[2].split()[0] for line in warnings] == ["100", "1000", "10000"]
    for line in warnings:
        assert ": WARNING/" in line
        assert all(
            words in line for words in (key, "by_setting", "max_waiting=", "on_conflict='skip'", "limit=")
        )


@pytest.mark.proves("long lines")
def test_a_caller_whose_call_joins_as_number_100_is_warned(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(101):
        lab.send("by_setting", key="k", tag="waits", options=PUBLISHED)
    key = lab.task("by_setting").lock_state("k").key
    (line,) = [text for text in caplog.messages if " wait in line for lock " in text]
    assert line.startswith(f"100 tasks wait in line for lock {key} of task {lab.module}.by_setting")


@pytest.mark.proves("long lines")
def test_a_line_that_goes_up_and_down_around_a_mark_is_warned_of_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, int]] = []
    clock = [1_000.0]
    monkeypatch.setattr(long_lines.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(notices, "line_grows", lambda task, key, position: told.append((key, position)))
    monkeypatch.setattr(long_lines, "_warned", {})
    for position in (99, 100, 101, 100, 999, 1_000):
        long_lines.warn_of_long_line("task", "one", position)
    long_lines.warn_of_long_line("task", "other", 100)
    assert told == [("one", 100), ("one", 1_000), ("other", 100)]
    clock[0] += 59
    long_lines.warn_of_long_line("task", "one", 100)
    assert len(told) == 3
    clock[0] += 2
    long_lines.warn_of_long_line("task", "one", 100)
    assert told[3:] == [("one", 100)]
    assert len(long_lines._warned) == 1


# The options of docs/how-to/periodic.md for a periodic task that takes longer than its period


@pytest.mark.promise(
    "The beat recipes never run two at once and pile nothing up (real beat, 0.2 s)",
    broke="the first recipe waits in line",
)
def test_a_periodic_task_that_takes_longer_than_its_period_never_runs_twice_nor_piles_up(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    names = {"one": "one_runs", "two": "one_runs_and_one_waits"}
    ticks = {tag: {"task": f"tests.worker.shop_full.{name}", "schedule": 0.2} for tag, name in names.items()}
    lab = make_lab(module="tests.worker.shop_full", beat_schedule=ticks)
    worker = lab.start_worker("w1", 4)
    with beat(lab, tmp_path):
        for runs in (1, 2, 3):
            lab.journal.wait_for("start", runs, tag="one")
            lab.journal.wait_for("start", runs, tag="two")
            lab.wait_for_line(1, "one_runs_and_one_waits")
            wait_for_lines(" skipped: ", worker.log.count(" skipped: ") + 10, worker)
            assert lab.waiting("one_runs") == 0
            assert lab.waiting("one_runs_and_one_waits") == 1
            assert len(lab.journal.events("start")) == 2 * runs
            lab.open("one", "two")
    assert lab.journal.most_open(key="one") == 1
    assert lab.journal.most_open(key="two") == 1


@contextmanager
def beat(lab: Lab, folder: Path) -> Iterator[None]:
    """A `celery beat` process."""
    command = [
        sys.executable, "-c", f"{DEATH_OF_PARENT}; from celery.__main__ import main; main()",
        "-A", lab.module, "beat", "-s", str(folder / "schedule"), "--pidfile=",
    ]  # fmt: skip
    with (folder / "beat.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=lab.environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        print(f"----- beat\n{(folder / 'beat.log').read_text()}")  # noqa: T201 - pytest shows it for a failed test
