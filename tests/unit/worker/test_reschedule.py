"""When a message comes again that found its key taken."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest

from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.worker import reschedule
from celery_exclusive.worker.reschedule import next_try


def stored(tries: int = 0, since: float | None = None) -> StoredMessage:
    header = Header("1a2b3c4d", "x:task", tries=tries, since=since)
    return StoredMessage(b"[]", "application/json", "utf-8", {HEADER: header.write()}, {}, "", "celery")


@pytest.mark.proves("reschedule")
def test_the_delay_grows_from_a_second_to_a_minute_and_differs_by_chance() -> None:
    for tries, longest in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
        pauses = [found[1] for _ in range(50) if (found := next_try(stored(tries, time.time()), None))]
        assert len(set(pauses)) == len(pauses) == 50
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


@pytest.mark.proves("reschedule")
def test_a_copy_remembers_its_tries_and_the_first_of_them_and_counts_as_redelivered() -> None:
    first = next_try(stored(), 60)
    assert first
    copy, pause = first
    header = Header.of(copy.headers[HEADER])
    assert header
    assert (header.id, header.exclusive, header.tries, header.promoted) == ("1a2b3c4d", "x:task", 1, "")
    eta = datetime.fromisoformat(copy.headers["eta"])
    assert abs((eta - datetime.now(timezone.utc)).total_seconds() - pause) < 30
    second = next_try(copy, 60)
    assert second
    again = Header.of(second[0].headers[HEADER])
    assert again
    assert (again.tries, again.since) == (2, header.since)


@pytest.mark.proves("reschedule")
def test_the_last_try_is_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(reschedule.time, "time", lambda: now)
    last = next_try(stored(9, now - 59.75), 60)
    assert last
    assert last[1] == 0.25
    assert next_try(stored(9, now - 60), 60) is None
