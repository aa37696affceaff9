"""How long the lock of a killed worker is held, by its time to live in the Redis."""

from __future__ import annotations

from bench.compare.stage import Stage

WHAT = "Longest time for which the lock of a killed worker stays, if nothing cleans up"
SETTINGS = ({}, {"is_tuned": True})


def play(stage: Stage) -> str:
    worker = stage.start_worker()
    stage.send("first")
    stage.wait_for("start", "first")
    worker.kill()
    left = stage.seconds_left_of_locks()
    if not left:
        return "no key in Redis"
    return "for ever" if -1 in left else f"{max(left):,.0f} s"
