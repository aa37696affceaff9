"""Marks of stores that messages bring: whoever publishes writes them. They fill neither memory nor log."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_exclusive.messages.header import Header
from celery_exclusive.worker import other_stores as module
from celery_exclusive.worker.other_stores import OtherStores

HOUR = 3600


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def stores(app: Celery, clock: list[float]) -> OtherStores:
    return OtherStores(app._celery_exclusive, "own")  # type: ignore[attr-defined]


def arrive(stores: OtherStores, *names: str) -> None:
    """Messages with these epochs, and then a beat."""
    for name in names:
        fields = Header("p", "x:" + "k" * 900, store=name).write()
        headers = {"origin": f"gen of {name[:9]}" + "x" * 999, "task": "load" + "y" * 999}
        stores.note(None, headers, fields)
    stores.report("own")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


@pytest.mark.proves("invented epochs")
def test_300_epochs_are_three_errors_an_hour_and_one_with_their_number(
    stores: OtherStores, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for first in range(0, 300, 30):
        arrive(stores, *(f"epoch {number}" for number in range(first, first + 30)))
    lines = told(caplog)
    assert len(lines) == 3
    assert all("publisher gen of epoch" in line and len(line) < 1_300 for line in lines)
    clock[0] += HOUR
    arrive(stores)
    (line,) = told(caplog)
    assert line.startswith("297 more publishers look for locks in another store than this worker")
    clock[0] += HOUR
    arrive(stores, "one more")
    (line,) = told(caplog)
    assert "gen of one more" in line


@pytest.mark.proves("invented epochs")
def test_an_epoch_is_reported_once_however_often_it_comes(
    stores: OtherStores, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        arrive(stores, "own", "other", "third")
        clock[0] += HOUR
    assert len(told(caplog)) == 2


@pytest.mark.proves("invented epochs")
def test_the_epochs_of_hours_take_a_bounded_memory(stores: OtherStores, clock: list[float]) -> None:
    for hour in range(4):
        arrive(stores, *(f"{hour} {number} " + "y" * 10_000 for number in range(2_000)))
        clock[0] += HOUR
    kept = [*stores._known, *stores._own, *(word for epoch in stores._new.items() for word in epoch)]
    assert sum(len(str(text)) for text in kept) < 400_000


@pytest.mark.proves("invented epochs")
def test_own_store_with_a_long_epoch_is_not_reported(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    own, current = "e" * 300, "f" * 300
    stores = OtherStores(app._celery_exclusive, own)  # type: ignore[attr-defined]
    for epoch in (own, current):
        stores.note(None, {}, Header("p", "x:k", store=epoch).write())
        stores.report(current)
    assert told(caplog) == []
