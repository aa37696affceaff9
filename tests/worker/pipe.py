"""The moment between the main process and its child: a task is in the pipe, and nobody has read it yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.worker.lab import Worker, eventually


@contextmanager
def in_the_pipe(worker: Worker, name: str, *args: Any, **kwargs: Any) -> Generator[Any]:
    """Hand a task to the only child of a worker, which reads it after the block."""
    lab = worker.lab
    lab.send(name, "another key").get(timeout=60)
    eventually(lambda: not ask(worker, "active"), "the end of the first task")
    child = int(lab.journal.events("start", key="another key")[-1]["pid"])
    os.kill(child, signal.SIGSTOP)
    before = _written(worker)
    result = lab.send(name, *args, **kwargs)
    eventually(lambda: _written(worker) > before, "the task in the pipe")
    yield result
    os.kill(child, signal.SIGCONT)


def ask(worker: Worker, what: str) -> Any:
    """What a worker tells of itself; again and again, since one that has just connected may not hear it."""
    inspect = worker.lab.app.control.inspect([worker.name], timeout=1, limit=1)
    return eventually(getattr(inspect, what), f"{what} of {worker.name}")[worker.name]


def _written(worker: Worker) -> int:
    """How many tasks the main process has written into the pipes of its children."""
    return int(ask(worker, "stats")["pool"]["writes"]["total"])
