"""The members of a chord have one key: does its body run?"""

from __future__ import annotations

from bench.compare.stage import Stage

TAGS = ("one", "two", "three")
WHAT = f"A chord of {len(TAGS)} members with one key"
SETTINGS = ({}, {"is_tuned": True})
PATIENCE = 30.0


def play(stage: Stage) -> str:
    stage.start_worker()
    outcome = stage.send_chord(*TAGS)
    stage.wait(lambda: bool(stage.events("start")), PATIENCE)
    stage.wait(lambda: len(stage.events("start")) > 1, 3)  # two at the same time, or one that waits
    stage.open(*TAGS)
    completes = stage.wait(lambda: bool(stage.events("start", "done")), PATIENCE)
    ran = sum(bool(stage.events("start", tag)) for tag in TAGS)
    body = "its body runs" if completes else "**its body did not run**"
    sent = "" if outcome == "sent" else f"sending it raised {outcome.removeprefix('refused: ')}; "
    return f"{sent}{body}; {ran} of {len(TAGS)} members ran"
