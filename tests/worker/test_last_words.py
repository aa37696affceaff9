"""What the end of a task publishes is never refused for its own sake, wherever that end is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import chain

from tests.worker.lab import Lab
from tests.worker.message import Message
from tests.worker.stage import Stage, on_stages
from tests.worker.versions import needs_celery

SHOP = "tests.worker.shop_last_words"


OPTIONS = pytest.mark.parametrize("option", ["unique", "exclusive"])
AS_THE_END = on_stages("prefork", brokers=("redis",), lates=(False,))
"""With early acknowledgement a killed child is the end of its task; its main process tells it."""


def fail(stage: Stage, option: str, how: str, *, sends_again: bool, **options: Any) -> Lab:
    lab = stage.make_lab(SHOP, exclusive_ttl=600)
    stage.start_worker(lab, "w1")
    stage.start_worker(lab, "w2")
    options |= {"time_limit": 5} if how == "hard-limit" else {}
    if "link_error" in options:
        options["link_error"] = lab.task(f"cleans_{option}").si("k")
    failed = lab.send(f"ends_{option}", "k", how, sends_again, options=options)
    assert isinstance(failed.get(timeout=60, propagate=False), Exception)
    return lab


@pytest.mark.promise(
    "Errbacks and hooks of a failed task, also before its body, are not skipped for its own sake, wherever "
    "its end is reported (exclusive and unique); nor is the next step that a finished task sends again "
    "when it is delivered again",
    name="last words",
    broke="the main process is not the end of a run; `before_start` is not; the ending task is no kin",
)
@OPTIONS
@pytest.mark.parametrize("how", ["exception", "early", "killed", "hard-limit"])
@AS_THE_END
def test_an_errback_runs_under_the_key_of_what_has_failed(stage: Stage, how: str, option: str) -> None:
    lab = fail(stage, option, how, sends_again=False, link_error=None)
    lab.journal.wait_for("end", tag="cleaned up")
    if how != "hard-limit":  # Celery may tell that twice
        stage.assert_nothing_is_left(lab)


@pytest.mark.proves("last words")
@OPTIONS
@pytest.mark.parametrize(
    "how",
    [
        "exception",
        "early",
        pytest.param("hard-limit", marks=needs_celery("5.7", "a hook after a hard limit")),
    ],
)
@AS_THE_END
def test_a_hook_sends_what_has_failed_again(stage: Stage, how: str, option: str) -> None:
    lab = fail(stage, option, how, sends_again=True)
    lab.journal.wait_for("end", tag="sent again")
    stage.assert_nothing_is_left(lab)


@pytest.mark.proves("last words")
@needs_celery("5.7", "what has finished sends the next step of its chain again")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_copy_of_what_has_finished_sends_the_next_step_without_a_body(stage: Stage) -> None:
    lab = stage.make_lab(SHOP, exclusive_ttl=600, worker_deduplicate_successful_tasks=True)
    step = lab.task("untrailed")
    chain(step.si("k", "one"), step.si("k", "two")).apply_async()
    (text,) = lab.doors.lrange("lab", 0, -1)
    worker = stage.start_worker(lab, slots=1)
    lab.journal.wait_for("end", tag="two")
    Message(lab, json.loads(text)).deliver_again()
    lab.journal.wait_for("end", 2, tag="two")
    stage.assert_nothing_is_left(lab)
    assert "DuplicateTask" not in worker.log
    assert lab.journal.tags() == ["one", "two", "two"]
