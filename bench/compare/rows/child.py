"""The child of a worker that runs a task is killed; the worker goes on."""

from __future__ import annotations

import os
import signal

from bench.compare.body import Event
from bench.compare.rows import crash
from bench.compare.stage import Stage, Worker

WHAT = "A worker's child is killed while it runs the task"
SETTINGS = ({}, {"is_tuned": True})


def play(stage: Stage) -> str:
    return crash.play(stage, kill_child)


def kill_child(worker: Worker, run: Event) -> None:
    if run.pid == worker.pid:
        raise RuntimeError("the worker has no children: say so in LACKS of the adapter")
    os.kill(run.pid, signal.SIGKILL)
