"""The demo itself, for real: green with our options, red without, and nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stage.processes import Processes

DEMO = Path(__file__).parents[2] / "examples" / "feeds" / "demo.py"
MARK = "FEEDS_DEMO_TEST"
DEADLINE = "150"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to see what is left running"),
]


class Demo:
    """One run of the demo, in a process group of its own like a job of a terminal."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO), "--deadline", DEADLINE, *arguments],
            env={**os.environ, "UNPROTECTED": "", **env, MARK: self.mark, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> None:
        """Read the output up to the line with this text."""
        assert self.process.stdout
        assert any(text in line for line in self.process.stdout), f"{text!r} never came"

    def finish(self) -> tuple[int, str]:
        """Return exit status and remaining output."""
        output = self.process.communicate()[0]
        return self.process.returncode, output

    def left(self) -> list[str]:
        """Return what still runs of it, once SIGKILL has had a moment to take effect."""
        deadline = time.monotonic() + 5
        while (running := self._running()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return running

    def _running(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    """Demos to be ended whatever happens to the test."""
    started: list[Demo] = []
    yield started
    for demo in started:
        with demo.process:
            demo.process.kill()


STORES = {
    "": "redis",
    "sqlite": "sqlite",
    "django": "django",
    "postgres": "postgresql",
    "mariadb": "mysql",
    "memcached": "memcached",
}


@pytest.mark.promise(
    "The demo with its worker killed loses no task and overlaps none, by a log that the library does not "
    "write; also with locks in SQLite, in the database of its Django project, in PostgreSQL, MariaDB, and "
    "memcached, where clicks are rescheduled",
    figure=(
        "Redis: 288 submitted, 265 met a held lock, 57 waited, a worker killed with 3 waiting: 0 lost, 0 "
        "overlaps, recovered in 9.5 s (ttl 10 s, a period of 1 s). SQLite: 262 met a held lock, 56 waited, "
        "recovered in 10.3 s. By hand, 256 to 266 met a held lock: 56 waited, recovered in 9.7 s "
        "(PostgreSQL); 53, 9.1 s (MariaDB); 57, 9.5 s (Django); 57, 11.9 s (memcached)"
    ),
    command="make demo STORE=sqlite",
)
@pytest.mark.parametrize(
    "store", ["", *(pytest.param(store, marks=pytest.mark.large) for store in STORES if store)]
)
def test_with_our_options_the_verdict_is_green(demos: list[Demo], tmp_path: Path, store: str):
    options = ["--store", store] if store else []
    demos.append(demo := Demo("--keep", str(tmp_path / "kept"), *options))
    status, output = demo.finish()
    assert "VERDICT: green" in output, output
    assert status == 0
    assert _row(output, "overlaps") == _row(output, "lost") == 0
    assert _row(output, "duplicate entries in the database") == 0
    assert _row(output, "met a held lock") >= 100
    assert _row(output, "  of these waited for it") >= 20
    assert re.search(r"worker killed while importing +observatory-log\.atom, [1-9]\d* waiting", output)
    assert re.search(r"imports that the kill cut off and that ran again +[1-9]\d* of \d+\n", output)
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"journal.jsonl", "feeds.sqlite3", "one@feeds.log"} <= kept
    assert ("locks.sqlite3" in kept) == (store == "sqlite")
    banner = (tmp_path / "kept" / "one@feeds.log").read_text()
    assert f"locks:       {STORES[store]}://" in banner
    assert demo.left() == []


@pytest.mark.promise(
    "The same load without our options overlaps",
    figure="258 overlaps, 583 duplicate entries",
    command="make demo UNPROTECTED=1",
)
@pytest.mark.large
def test_without_our_options_the_same_load_overlaps(demos: list[Demo]):
    demos.append(demo := Demo(UNPROTECTED="1"))
    status, output = demo.finish()
    assert "VERDICT: red" in output, output
    assert status == 1
    assert _row(output, "overlaps") > 0
    assert _row(output, "lost") == 0
    assert demo.left() == []


@pytest.mark.promise(
    "The demo leaves nothing running, Ctrl-C included",
    name="interrupted demo",
    figure="SIGINT in `make test`, SIGTERM and SIGHUP in `make test-all`",
)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.large),
        pytest.param(signal.SIGHUP, marks=pytest.mark.large),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(demos: list[Demo], number: signal.Signals, tmp_path: Path):
    demos.append(demo := Demo("--unprotected", TMPDIR=str(tmp_path)))
    demo.wait_for("producers begin")
    os.killpg(demo.process.pid, number)
    status, output = demo.finish()
    assert "Interrupted" in output
    assert status == 130
    assert demo.left() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proves("interrupted demo")
def test_processes_are_stopped_though_an_interrupt_came_while_one_was_looked_at(tmp_path: Path):
    processes = Processes(tmp_path, DEMO.parent)
    sleeper = processes.start("sleeper", ["sleep", "600"], os.environ)
    sleeper._waitpid_lock.acquire()  # type: ignore[attr-defined] # between this line of `poll` and its `try`
    processes.stop()
    assert sleeper.returncode == -signal.SIGKILL


@pytest.mark.proves("interrupted demo")
def test_a_killed_demo_leaves_nothing_running(demos: list[Demo], tmp_path: Path):
    demos.append(demo := Demo("--unprotected", TMPDIR=str(tmp_path)))
    demo.wait_for("producers begin")
    assert len(demo._running()) > 8
    demo.process.kill()
    demo.process.wait()
    assert demo.left() == []


def test_help_tells_the_exit_codes():
    done = subprocess.run([sys.executable, str(DEMO), "--help"], capture_output=True, text=True, check=True)
    assert "0 green, 1 red, 2 inconclusive" in done.stdout


def _row(output: str, label: str) -> int:
    found = re.search(rf"^ *{re.escape(label)}.*?  +(\d+)", output, re.MULTILINE)
    assert found, f"no row {label!r} in:\n{output}"
    return int(found[1])
