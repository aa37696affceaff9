"""The scene of both crashes: a run is killed; does it run again, and does the next call of its key run?"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.compare.body import Event
from bench.compare.stage import Stage, Worker


def play(stage: Stage, kill: Callable[[Worker, Event], None]) -> str:
    """Kill the first run, start another worker if that ended the worker, and wait for both calls."""
    worker = stage.start_worker()
    stage.send("first")
    first = stage.wait_for("start", "first")
    kill(worker, first)
    killed = time.monotonic()
    stage.open("first", "next")
    outcome = ""
    while time.monotonic() < killed + stage.system.patience:
        if not worker.is_up:  # as a service manager does
            worker = stage.start_worker()
        if outcome != "sent":
            outcome = stage.send("next")
        if len(stage.events("start", "first")) > 1 and stage.events("start", "next"):
            break
        time.sleep(0.5)
    again, following = stage.events("start", "first")[1:], stage.events("start", "next")
    seconds = stage.system.patience
    run = f"run again after {again[0].at - killed:.0f} s" if again else f"run not again in {seconds:.0f} s"
    if following:
        return f"{run}; next call after {following[0].at - killed:.0f} s"
    if outcome == "sent":
        return f"{run}; **next call did not run**"
    return f"{run}; **next calls refused**"
