"""A run takes longer than its lock's timeout."""

from __future__ import annotations

import time

from bench.compare.stage import Stage

TIMEOUT = 2
WHAT = f"The run takes longer than the lock's timeout (here {TIMEOUT} s)"
SETTINGS = ({"timeout": TIMEOUT},)
PATIENCE = 15.0


def play(stage: Stage) -> str:
    stage.start_worker()
    stage.send("first")
    stage.wait_for("start", "first")
    time.sleep(2 * TIMEOUT)
    outcome = stage.send("next")
    if stage.wait(lambda: bool(stage.events("start", "next")), PATIENCE):
        return "**two runs at the same time**"
    stage.open("first", "next")
    if outcome != "sent":
        return "no overlap; the next call was refused"
    if stage.wait(lambda: bool(stage.events("start", "next")), 4 * PATIENCE):
        return "no overlap; the next call ran after it"
    return "no overlap; the next call did not run"
