"""What nobody may read is nowhere to be read, and what others write is never taken for a line of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import LockHeld, OptionError
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.trouble import lose
from tests.worker.watcher import SENDS_EVENTS, Watcher

DEADLINE = 90
MODULE = "tests.worker.shop_leaks"
SECRET = "hunter2"
MASKED = {"argsrepr": "('<token>',)", "kwargsrepr": "{'tag': '<tag>'}"}
SHOWN = "(('<token>',) {'tag': '<tag>'})"


def send(lab: Lab, name: str, tag: str, **more: Any) -> Any:
    """Publish a call whose first argument is nobody's business."""
    return lab.task(name).apply_async((SECRET,), {"tag": tag, **more}, **MASKED)


def conflicts(lab: Lab, worker: Worker) -> dict[str, str]:
    """Let calls meet a held key in every way; return the log line of each."""
    lines = {}
    said = {"wait": "parked", "quiet": "skipped", "skip": "skipped", "later": "rescheduled"}
    for name in ("wait", "skip", "strict", "later", "hasty", "replaced", "quiet", "full"):
        send(lab, name, f"{name} holder", hold=True)
        lab.journal.wait_for("start", tag=f"{name} holder")
        if name in ("quiet", "full"):
            lines[f"{name} parked"] = worker.wait_for_log(f"[{send(lab, name, 'waits').id}] parked")
        other = send(lab, name, "other")
        if name in said:
            lines[name] = worker.wait_for_log(f"[{other.id}] {said[name]}")
        if name == "replaced":
            worker.wait_for_log(f"[{other.id}] parked")
            send(lab, name, "newer")
            lines[name] = worker.wait_for_log(f"[{other.id}] skipped")
        if name in ("strict", "full", "later", "hasty"):
            with pytest.raises(
                LockHeld, match=rf"task {MODULE}\.{name} .* lock x:{MODULE}\.{name}:[0-9a-f]{{32}}[ :]"
            ):
                other.get(timeout=DEADLINE)
        lab.open(f"{name} holder")
        lab.journal.wait_for("end", tag=f"{name} holder")
    return lines


@pytest.mark.promise(
    "Arguments that a call masks are in no log line, result and event; a retry shows none; errors and "
    "events name the key alone",
    name="masked arguments",
    broke="the arguments' own preview; a retry that is like any other; the preview in `LockHeld` and events",
)
def test_an_argument_that_its_caller_masks_is_in_no_log_line_no_result_and_no_event(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module=MODULE, task_acks_late=True)
    worker = lab.start_worker("w1", 4, options=SENDS_EVENTS)
    with Watcher(lab, worker) as watcher:
        for name, line in conflicts(lab, worker).items():
            assert SHOWN in line, name
        lose(lab, worker, "loser", SECRET, **MASKED)
        first = send(lab, "sole", "sole", hold=True)
        lab.journal.wait_for("start", tag="sole")
        assert send(lab, "sole", "twice").existing_id == first.id
        lab.open("sole")
        assert first.get(timeout=DEADLINE) == "sole"
        (lost,) = watcher.wait_for("lock-lost")
        assert lost["lock"] == lab.task("lost").lock_state(SECRET).key
        eventually(lambda: lab.messages_at_the_broker() == 0, "the end of all")
    assert SECRET not in worker.log
    assert SECRET not in repr(watcher._seen)
    results = [lab.doors.get(key) for key in lab.doors.scan_iter("celery-task-meta-*")]
    assert SECRET not in repr(results)


@pytest.mark.proves("masked arguments")
def test_the_retry_of_a_call_whose_arguments_are_masked_shows_none(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=MODULE, task_acks_late=True)
    worker = lab.start_worker("w1", 4)
    first = send(lab, "wait", "first", again=True, hold=True)
    lab.journal.wait_for("start", tag="first")
    for tag in ("second", "third"):
        worker.wait_for_log(f"[{send(lab, 'wait', tag, hold=True).id}] parked")
    lab.open("first")
    line = worker.wait_for_log(f"[{first.id}] parked")
    assert f"in line for lock x:{MODULE}.wait:" in line
    lab.open("first")
    lab.open("second")
    lab.open("third")
    assert first.get(timeout=DEADLINE) == "first"
    assert SECRET not in worker.log


@pytest.mark.promise(
    "An argument that cannot be a key is named, and not shown",
    name="argument that is no key",
    broke="the keys of a dict in its place",
)
def test_an_argument_that_cannot_be_a_key_is_named_and_not_shown(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=MODULE)
    with pytest.raises(OptionError, match=r"argument token\[\.\.\.\] is of type object, which has") as wrong:
        lab.task("wait").delay({SECRET: object()})
    assert SECRET not in str(wrong.value)


FORGED = "k\n[2027-01-01 00:00:00,000: ERROR/MainProcess] forged\r\x1b[2J\u202e\x07end"
ESCAPED = r"k\x0a[2027-01-01 00:00:00,000: ERROR/MainProcess] forged\x0d\x1b[2J\u202e\x07end"


@pytest.mark.proves("printable notices")
def test_a_key_that_looks_like_a_line_of_the_log_is_part_of_one(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(module=MODULE, task_acks_late=True)
    worker = lab.start_worker("w1", 4)
    holder = lab.send("patient", FORGED, tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    waits = lab.send("patient", FORGED, tag="waits")
    line = worker.wait_for_log(f"[{waits.id}] parked")
    assert f"lock x={ESCAPED} (key=" in line
    with pytest.raises(LockHeld, match="forged") as refused:
        lab.send("hostile", FORGED).get(timeout=DEADLINE)
    assert str(refused.value).isprintable()
    assert refused.value.key == f"x={FORGED}"
    lab.open("holder")
    assert (holder.get(timeout=DEADLINE), waits.get(timeout=DEADLINE)) == ("holder", "waits")
    worker.wait_for_log("raised unexpected: LockHeld")
    log = worker.log_path.read_bytes().decode()
    assert not [line for line in log.split("\n") if not line.isprintable() or line.startswith("[2027")]
