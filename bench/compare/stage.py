"""One scene's stage: a server, workers and a caller of one system, the journal, and the doors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import Self

from bench.compare import body
from bench.compare.body import Event
from bench.compare.place import Place
from bench.compare.system import System
from tests.postgres import PostgresServer
from tests.servers import RedisServer
from tests.worker.nursery import DEATH_OF_PARENT

ROOT = Path(__file__).parents[2]
START = 120.0
"""Seconds in which the first task of a scene has to begin, on a busy machine too."""


class Stage:
    """The workers, the caller and the journal of one scene.

    with Stage(system, python, is_tuned=False) as stage:
        worker = stage.start_worker()
        stage.send("first")
        stage.wait_for("start", "first")
    """

    def __init__(self, system: System, python: Path, **settings: Any) -> None:
        self.system = system
        self._python, self._settings = python, settings
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(TemporaryDirectory(prefix="compare-"))
        server = RedisServer() if self.system.server == "redis" else PostgresServer()
        self._server = self._stack.enter_context(server)
        self.place = Place(server.url, folder, **self._settings)
        self._caller = self._start("call", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(_end, self._caller)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_worker(self) -> Worker:
        """Start a worker, and wait until it is ready."""
        log = Path(self.place.folder, f"log-{time.monotonic_ns()}")
        with log.open("wb") as file:
            worker = Worker(self._start("work", stdin=subprocess.DEVNULL, stdout=file, stderr=file), log)
        self._stack.callback(worker.kill)
        if not self.wait(lambda: self.system.ready in worker.log() or not worker.is_up, START):
            raise TimeoutError(f"a worker of {self.system.name} is not ready:\n{worker.log()[-3000:]}")
        if not worker.is_up:
            raise RuntimeError(f"a worker of {self.system.name} ended:\n{worker.log()[-3000:]}")
        return worker

    def send(self, tag: str, key: str = "key") -> str:
        """Send a call; return "sent", or how it was refused."""
        return self._ask("send", key, tag)

    def send_chord(self, *tags: str, key: str = "key") -> str:
        """Send a chord of one call per tag, whose body notes the start of "done"."""
        return self._ask("chord", key, tags)

    def open(self, *tags: str) -> None:
        """Let the bodies of these tags end, now and in each later run."""
        for tag in tags:
            body.door(self.place.folder, tag).touch()

    def events(self, what: str, tag: str = "") -> list[Event]:
        found = body.events(self.place.folder)
        return [event for event in found if event.what == what and tag in ("", event.tag)]

    def ended(self) -> int:
        """Return how many calls have ended or were dropped so far."""
        return body.ended(self.place.folder)

    def wait_for(self, what: str, tag: str, seconds: float = START) -> Event:
        if not self.wait(lambda: bool(self.events(what, tag)), seconds):
            raise TimeoutError(f"{self.system.name}: no {what} of {tag} within {seconds:g} s")
        return self.events(what, tag)[0]

    def wait(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Return whether it became true within so many seconds."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def seconds_left_of_locks(self) -> list[float]:
        """Return how long the locks in Redis would still be held; -1 is for ever."""
        if not self.system.keys or not isinstance(self._server, RedisServer):
            return []
        with self._server.client() as client:
            left = [client.pttl(key) for key in client.scan_iter(self.system.keys)]
        return [milliseconds / 1000 if milliseconds > 0 else -1 for milliseconds in left]

    def _ask(self, *words: object) -> str:
        assert self._caller.stdin
        assert self._caller.stdout
        self._caller.stdin.write(json.dumps(words) + "\n")
        self._caller.stdin.flush()
        return str(json.loads(self._caller.stdout.readline()))

    def _start(self, role: str, **options: Any) -> subprocess.Popen[Any]:
        main = f"{DEATH_OF_PARENT}; from bench.compare.inside import main; import sys; main(*sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        return subprocess.Popen(
            [self._python, "-c", main, self.system.name, role, self.place.to_json()],
            cwd=self.place.folder,
            env=environment,
            start_new_session=True,
            **options,
        )


class Worker:
    """A worker process with its children."""

    def __init__(self, process: subprocess.Popen[Any], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it with all of its children at once, as a lost machine would."""
        _end(self._process)


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process and its session. The children of one that has ended already are in the session, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
