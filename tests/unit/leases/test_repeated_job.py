"""The trouble of a thread is in the log when it begins, while it lasts, and when it ends."""

from __future__ import annotations

import logging
import re

import pytest

from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.leases import repeated_job as module
from celery_exclusive.leases.repeated_job import RepeatedJob

ENDING = re.compile(r"the search recovered after \d+ s")


def fail(trouble: RepeatedJob, times: int = 1) -> None:
    for _ in range(times):
        with trouble:
            raise StoreUnavailable("no answer")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "celery_exclusive")
    return caplog


@pytest.mark.promise(
    "Trouble of heartbeat, reaper and releaser is in the log when it begins, again each minute with its "
    "duration, and when it ends",
    name="trouble that lasts",
    broke="logged once; logged at each failure; the end without a duration",
)
def test_trouble_that_lasts_is_logged_again_and_its_end_with_its_duration(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = RepeatedJob("the search")
    fail(trouble, times=3)
    assert log.messages == ["the search failed; retrying: no answer"]
    monkeypatch.setattr(module, "_AGAIN", 0)
    fail(trouble, times=2)
    assert len(log.messages) == 3
    assert all(
        re.fullmatch(r"the search has failed for \d+ s; retrying: no answer", it) for it in log.messages[1:]
    )
    with trouble:
        pass
    assert ENDING.fullmatch(log.messages[-1])


@pytest.mark.proves("trouble that lasts")
def test_trouble_that_comes_again_is_another_one(log: pytest.LogCaptureFixture) -> None:
    trouble = RepeatedJob("the search")
    for _ in range(2):
        fail(trouble)
        assert (trouble.lasts, trouble.pause(10)) == (True, 1)
        with trouble:
            pass
        assert (trouble.lasts, trouble.pause(10)) == (False, 10)
    begins, ends, *again = log.messages
    assert begins == again[0]
    assert ENDING.fullmatch(ends)
    assert ENDING.fullmatch(again[1])
