"""A chain is called again while its first step runs, with the same key: when does the second one go on?"""

from __future__ import annotations

from bench.compare.stage import Stage

WHAT = "A chain is called again while its first step runs"
SETTINGS = ({}, {"is_tuned": True})
PATIENCE = 30.0
EARLY = 4.0
"""Seconds in which a next step that does not wait for the work has begun."""


def play(stage: Stage) -> str:
    stage.start_worker()
    stage.send_chord("one")  # of one member: Celery makes a chain of it
    stage.wait_for("start", "one")
    outcome = stage.send_chord("two")
    is_early = stage.wait(lambda: bool(stage.events("start", "done")), EARLY)
    stage.open("one", "two")
    stage.wait(lambda: len(stage.events("start", "done")) == 2, PATIENCE)
    went_on, ran = (
        len(stage.events("start", "done")),
        sum(bool(stage.events("start", it)) for it in ("one", "two")),
    )
    sent = "" if outcome == "sent" else f"sending it raised {outcome.removeprefix('refused: ')}; "
    when = (
        "**its next step ran before the work was done**"
        if is_early
        else "no next step ran before the work was done"
    )
    return f"{sent}{when}; {went_on} of 2 went on; the first step ran {ran} of 2 times"
