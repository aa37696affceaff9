"""A worker is killed with all of its children, and another one is started."""

from __future__ import annotations

from bench.compare.body import Event
from bench.compare.rows import crash
from bench.compare.stage import Stage, Worker

WHAT = "The whole worker is killed; another one is started"
SETTINGS = ({}, {"is_tuned": True})


def play(stage: Stage) -> str:
    return crash.play(stage, kill_worker)


def kill_worker(worker: Worker, _run: Event) -> None:
    worker.kill()
