"""Marks of stores that messages bring: whoever publishes writes them. They fill neither memory nor log."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_exclusive.messages.header import Header
from celery_exclusive.worker.other_stores import OtherStores


@pytest.fixture
def stores(app: Celery) -> OtherStores:
    return OtherStores(app._celery_exclusive, "own")  # type: ignore[attr-defined]


def arrive(stores: OtherStores, *names: str) -> None:
    """Messages with these epochs, and then a beat."""
    for name in names:
        fields = Header("p", "x:" + "k" * 900, store=name).write()
        headers = {"origin": f"gen of {name[:9]}" + "x" * 999, "task": "load" + "y" * 999}
        stores.note(headers, fields)
    stores.report("own")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


@pytest.mark.proves("invented epochs")
def test_of_2000_long_epochs_a_hundred_are_reported_once_and_remembered(
    stores: OtherStores, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        arrive(stores, "own", *(f"epoch {number} " + "y" * 10_000 for number in range(2_000)))
    lines = told(caplog)
    assert len(lines) == 100
    assert all("publisher gen of epoch" in line and len(line) < 1_300 for line in lines)
    assert sum(map(len, [*stores._seen, *stores._own])) < 26_000


@pytest.mark.proves("invented epochs")
def test_own_store_with_a_long_epoch_is_not_reported(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    own, current = "e" * 300, "f" * 300
    stores = OtherStores(app._celery_exclusive, own)  # type: ignore[attr-defined]
    for epoch in (own, current):
        stores.note({}, Header("p", "x:k", store=epoch).write())
        stores.report(current)
    assert told(caplog) == []
