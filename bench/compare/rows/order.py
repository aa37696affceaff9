"""Calls of one key that wait: in which order do they run?"""

from __future__ import annotations

from bench.compare.stage import Stage

COUNT = 8
WHAT = f"Order of {COUNT} calls that wait for the key"
SETTINGS = ({"slots": 3}, {"slots": 3, "is_tuned": True})
PATIENCE = 60.0


def play(stage: Stage) -> str:
    stage.start_worker()
    stage.send("0")
    stage.wait_for("start", "0")
    tags = [str(number) for number in range(1, COUNT + 1)]
    outcomes = [stage.send(tag) for tag in tags]
    refused = sum(outcome != "sent" for outcome in outcomes)
    stage.wait(lambda: len(stage.events("skipped")) == COUNT, 3)
    stage.open("0", *tags)
    skipped = len(stage.events("skipped"))
    stage.wait(lambda: len(stage.events("start")) > COUNT - refused - skipped, PATIENCE)
    began = [event.tag for event in stage.events("start")][1:]
    if refused == COUNT:
        return "none waits: refused when called"
    if skipped == COUNT:
        return "none waits: dropped by the worker"
    if began == tags:
        return "as called"
    missing = f" ({COUNT - len(began)} did not run in {PATIENCE:.0f} s)" if len(began) < COUNT else ""
    return f"{' '.join(began) or 'none'}{missing}"
