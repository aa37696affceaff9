"""A real worker process of one contender: `python -m bench.worker` runs it, and `Worker` starts that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from typing_extensions import Self

from bench import cpu, tasks
from bench.trace import Trace
from tests.servers import wait_until
from tests.worker.nursery import DEATH_OF_PARENT


class Worker:
    """Consumes nothing until `consume` names a queue; `task` publishes to it.

    with Worker("bare", server.url, folder, slots=2, tally=tally.path) as worker:
        worker.task.apply_async(("key", 0), queue="q")
        worker.consume("q")
    """

    def __init__(
        self, contender: str, url: str, folder: str | Path, *, slots: int, tally: Path, trace: bool = False,
        **conf: Any,
    ) -> None:  # fmt: skip
        self.contender = contender
        self.name = f"{contender.replace(' ', '-').replace(',', '')}-{time.monotonic_ns()}@bench"
        self.task = tasks.make(contender, url, **conf)
        self._log = Path(folder, f"{self.name}.log")
        words = ["worker", "-c", str(slots), "-n", self.name, "-Q", f"idle-{self.name}", "-l", "INFO"]
        options = {"contender": contender, "broker": url, "tally": str(tally), **conf}
        if trace:
            options["trace"] = str(folder)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", json.dumps(options), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def consume(self, queue: str) -> None:
        """Let it consume this queue, too, when it is ready."""
        wait_until(lambda: " ready." in self._text() or not self.is_up, f"{self.name} to be ready", 60)
        if not self.is_up:
            raise RuntimeError(f"{self.name} ended:\n{self._text()[-4_000:]}")
        # Redis forgets what it is told before the worker subscribes, which is shortly after it is ready.
        wait_until(lambda: self._hears_of(queue), f"{self.name} to consume {queue}", 60)

    def _hears_of(self, queue: str) -> bool:
        replies = self.task.app.control.broadcast(
            "add_consumer",
            arguments={"queue": queue},
            destination=[self.name],
            reply=True,
            limit=1,
            timeout=5,
        )
        return bool(replies)

    @property
    def pid(self) -> int:
        """The id of its main process."""
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process.poll() is None

    def spent(self) -> float:
        """Seconds of the processor, in user and kernel mode, that its processes have had."""
        return cpu.of_process(self._process.pid)

    def kill(self) -> None:
        if self.is_up:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


if __name__ == "__main__":
    exec(DEATH_OF_PARENT)
    worker_options = json.loads(sys.argv[1])
    traces_into = worker_options.pop("trace", None)
    worker_task = tasks.make(worker_options.pop("contender"), worker_options.pop("broker"), **worker_options)
    if traces_into:
        Trace(traces_into).start()
    worker_task.app.worker_main([*sys.argv[2:], "--without-gossip", "--without-mingle"])
