"""A worker starts when the message of a run was not acknowledged in time. The run goes on."""

from __future__ import annotations

import time

from bench.compare.stage import Stage

TIMEOUT = 3
WHAT = "The message is delivered again while the run goes on"
SETTINGS = ({"is_tuned": True, "redelivery": TIMEOUT},)
PATIENCE = 45.0
AFTERWARDS = 10.0


def play(stage: Stage) -> str:
    workers = [stage.start_worker()]
    stage.send("first")
    first = stage.wait_for("start", "first")
    time.sleep(2 * TIMEOUT)
    workers.append(stage.start_worker())

    def runs() -> int:
        return len(stage.events("start", "first"))

    def received() -> int:
        word = stage.system.received
        return sum(worker.log().count(word) for worker in workers) if word else 0

    if stage.wait(lambda: runs() > 1, PATIENCE):
        seconds = stage.events("start", "first")[1].at - first.at
        return f"**two runs at the same time**, after {seconds:.0f} s"
    copies = received()
    stage.open("first")
    if stage.wait(lambda: runs() > 1, AFTERWARDS):
        return "no overlap; the copy ran after the run"
    if stage.system.received and copies < 2:
        return f"not delivered again in {PATIENCE:.0f} s"
    return "one run"
