"""What a release by an operator says, and the audit line that it leaves."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from celery_exclusive import Exclusive, Unique
from celery_exclusive.core.operations import Acquire, AcquireAlone
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.workers import WorkerRecord
from tests.cli.conftest import Desk
from tests.cli.test_terminal import message
from tests.servers import RedisServer
from tests.worker.lab import Lab, command
from tests.worker.watcher import SENDS_EVENTS, Watcher

WORKER = WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)
FORCE = ("release", "--force", "--reason", "web1 is dead")


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator called sudo."""
    monkeypatch.setenv("SUDO_USER", "ada")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def hold(desk: Desk, key: str, id: str = "a/p") -> None:
    desk.store.keep_namespace("broker", 60 * SECOND, WORKER)
    desk.store.apply(key, Acquire(id, f"{WORKER.number:04x}{'0' * 12}", 600 * SECOND))


@pytest.mark.promise(
    "`locks drop` and `locks put` each leave one WARNING and one event with the operator, its uid, "
    "the reason and the numbers, as `locks adopt` and a drop on the page do",
    name="audit of commands",
    broke="red before: no line and no event of these; SUDO_USER alone named the operator",
    also="`unit/web/test_dropping.py`",
)
@pytest.mark.promise(
    "A refused release names the worker of the holder, and what --force breaks; --force needs a --reason; "
    "each release is a WARNING and an event that name the operator, the key, the holder, its worker and the "
    "reason",
    name="audit of releases",
    broke="no worker looked up; the event sent by workers alone; no reason asked for: each red",
)
def test_a_drop_a_put_and_a_release_by_force_leave_an_audit_line_and_an_event(
    make_lab: Callable[..., Lab], tmp_path: Path
):
    lab = make_lab(task_acks_late=True, task_reject_on_worker_lost=True)
    worker = lab.start_worker(options=SENDS_EVENTS)
    first = lab.send("wait", "k", tag="first", hold=True)
    lab.journal.wait_for("start", tag="first")
    second = lab.send("wait", "k", tag="second")
    lab.wait_for_line(1, "wait", "k")
    key, on_worker = lab.task("wait").lock_state("k").key, f"on {worker.name} pid {worker.pid}"

    refused = command(lab, "locks", "release", key)
    assert refused.returncode == 1
    assert f"held by {first.id} {on_worker} for" in refused.stderr
    assert f"the body {on_worker} goes on beside the next holder, which is {second.id}" in refused.stderr
    assert command(lab, "locks", "release", key, "--force").returncode == 2

    with Watcher(lab, worker) as watcher:
        file = str(tmp_path / "f")
        done = command(lab, "locks", "drop", key, "--to", file, "--yes", "--reason", "too many")
        (event,) = watcher.wait_for("lock-dropped")
        line = f"task {second.id} was dropped from the line of lock {key} by {event['by']} (too many)"
        assert f"{line}, and saved in {file}" in done.stderr
        assert [event[name] for name in ("dropped", "locks", "lock", "reason")] == [1, 1, key, "too many"]
        done = command(lab, "locks", "put", file, "--reason", "sorry")
        (event,) = watcher.wait_for("lock-put")
        assert f"tasks of the file {file} were put back by {event['by']} (sorry): put 1" in done.stderr
        assert [event[name] for name in ("put", "file", "reason")] == [1, file, "sorry"]
        done = command(lab, "locks", *FORCE, key)
        assert done.returncode == 0, done.stderr
        (event,) = watcher.wait_for("lock-released")
    assert f"released the lease of {first.id} {on_worker}, held for" in done.stdout
    assert f"lock {key} was released by force by {event['by']} (web1 is dead)" in done.stderr
    assert f"held by {first.id} for" in done.stderr
    assert f" {on_worker}. A body that still runs goes on" in done.stderr
    known = {name: event[name] for name in ("uuid", "name", "lock", "forced", "worker", "reason")}
    assert known == {
        "uuid": first.id,
        "name": "tests.worker.shop.wait",
        "lock": key,
        "forced": True,
        "worker": on_worker.removeprefix("on "),
        "reason": "web1 is dead",
    }
    assert event["hostname"] == event["by"]
    assert event["by"] == f"ada@{gethostname()} uid {os.getuid()}"
    lab.journal.wait_for("start", tag="second")
    lab.open("first")


@pytest.mark.proves("audit of releases")
def test_a_release_ends_though_the_broker_is_away(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer]
):
    lab = make_lab(exclusive_store=start_redis().url)
    lab.app._celery_exclusive.store.apply("x:k", Acquire("a/p", "0" * 16, 600 * SECOND))  # type: ignore[attr-defined]
    done = command(lab, "locks", *FORCE, "x:k", broker_url="redis://127.0.0.1:1")
    assert (done.returncode, "released the lease of a" in done.stdout) == (0, True), done.stderr


@pytest.mark.proves("audit of releases")
def test_force_without_a_reason_is_wrong_usage_that_says_what_to_add(desk: Desk):
    hold(desk, "x:k")
    for words in (("--force",), ("--force", "--reason", " ")):
        refused = desk.run("release", *words, "x:k")
        assert refused.exit_code == 2
        assert "--reason 'worker web3 is dead'" in refused.stderr
    assert desk.store.inspect("x:k").is_busy


@pytest.mark.proves("audit of releases")
def test_each_kind_of_release_is_logged_with_its_operator(desk: Desk, warnings: Callable[[], list[str]]):
    hold(desk, "x:k")
    desk.pass_time(3)
    assert desk.run(*FORCE, "x:k").exit_code == 0
    desk.store.apply("u:k", AcquireAlone("b/p", "p", 600 * SECOND, phase="queued"))
    assert desk.run("release", "--reason", "purged\x1b[2J", "u:k").exit_code == 0
    desk.store.apply("u:desk.send", AcquireAlone("c/p", "p", 600 * SECOND, phase="queued"))
    assert desk.run("release", "--queued", "--yes", "desk.send").exit_code == 0
    desk.acquire("x:dead", "d/p", recovers=True, at_once=True, message=message("d", "x:dead"))
    desk.pass_time(601)
    assert desk.run("release", "x:dead").exit_code == 0
    forced, unique, queued, dead = warnings()
    assert forced.startswith("lock x:k was released by force by ada@")
    assert " (web1 is dead): it was held by a for 3.0s on celery@web1 pid 4711." in forced
    assert unique.startswith("lock u:k was released by ada@")
    assert "(purged\\x1b[2J): it was held by b" in unique
    assert queued.startswith("lock u:desk.send was released by ada@")
    assert dead.startswith("lock x:dead was released by ada@")


@pytest.mark.proves("audit of commands")
@pytest.mark.parametrize(("words", "what"), [((), "adopted"), (("--drop",), "deleted")])
def test_an_adoption_is_logged_and_told_with_its_operator(
    make_desk: Callable[..., Desk],
    tmp_path: Path,
    warnings: Callable[[], list[str]],
    words: tuple[str, ...],
    what: str,
):
    desk = make_desk(exclusive_store=f"sqlite:///{tmp_path}/locks.db")
    desk.acquire("x:k", "a/p")
    desk.acquire("x:k", "b/p", message=message("b", "x:k"))
    desk.store.keep_namespace("broker", 1)
    with desk.app.connection_for_read() as connection:
        receiver = desk.app.events.Receiver(connection)
        receiver.queue(connection.default_channel).declare()
        done = desk.run("adopt", "--yes", "--reason", "a copy", *words)
        assert done.exit_code == 0, done.output
        told = list[dict[str, Any]]()
        receiver.handlers["*"] = told.append
        for _ in receiver.consume(limit=None, timeout=30):
            if told:
                break
    (event,) = told
    assert [event[name] for name in ("owner", "waiting", "deleted")] == ["broker", 1, bool(words)]
    (line,) = (line for line in warnings() if line.startswith("the locks of prefix cx"))
    assert f"which belonged to broker broker, were {what} by {event['by']} (a copy): 1 tasks waited" in line
    assert event["by"].startswith("ada@")


def test_a_release_that_finds_no_holder_logs_nothing(desk: Desk, warnings: Callable[[], list[str]]):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    assert load.release_lock(force=True, reason="a test") == ()
    assert warnings() == []


@pytest.mark.proves("audit of releases")
def test_release_lock_takes_a_reason_unless_the_task_has_a_parameter_of_that_name(
    desk: Desk, warnings: Callable[[], list[str]]
):
    @desk.app.task(name="desk.load", shared=False, exclusive=Exclusive())
    def load() -> None: ...

    @desk.app.task(name="desk.tell", shared=False, unique=Unique())
    def tell(reason: str = "") -> None: ...

    hold(desk, "x:desk.load")
    assert [holder.task_id for holder in load.release_lock(force=True, reason="web1 is dead")] == ["a"]
    assert "(web1 is dead)" in warnings()[0]
    with pytest.raises(TypeError, match="give it by position"):
        tell.release_lock(reason="late")
    assert tell.release_lock("late") == ()


def test_the_operator_of_a_process_without_a_user_name_is_its_number(
    desk: Desk, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    def no_name() -> Any:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setattr("celery_exclusive.system.operator.getuser", no_name)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    hold(desk, "x:k")
    assert desk.run(*FORCE, "x:k").exit_code == 0
    assert "by 1234@" in warnings()[0]
