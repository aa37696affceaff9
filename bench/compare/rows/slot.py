"""Calls of one key wait: does a call of another key run meanwhile?"""

from __future__ import annotations

import time

from bench.compare.stage import Stage

COUNT = 10
WHAT = f"Does a call of another key run while {COUNT} calls wait, with 2 slots"
SETTINGS = ({},)
PATIENCE = 20.0


def play(stage: Stage) -> str:
    stage.start_worker()
    stage.send("first")
    stage.wait_for("start", "first")
    waiting = [f"waiting-{number}" for number in range(COUNT)]
    outcomes = [stage.send(tag) for tag in waiting]
    time.sleep(3)
    stage.send("other", key="other")
    runs = stage.wait(lambda: bool(stage.events("start", "other")), PATIENCE)
    stage.open("first", "other", *waiting)
    if not runs:
        return "**no**: calls that wait use all slots"
    if any(outcome != "sent" for outcome in outcomes) or stage.events("skipped"):
        return "yes, but none waits"
    return "yes"
