"""A roster, and the heartbeat that reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billiard.process import current_process
from celery import Celery

from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.worker import roster as module
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.roster import Roster


@pytest.fixture
def roster(monkeypatch: pytest.MonkeyPatch) -> Roster:
    """One of three slots, in which this process is a child."""
    monkeypatch.setattr(current_process(), "index", 0, raising=False)
    monkeypatch.setattr(module, "_FEWEST", 3)
    return Roster(1)


@pytest.fixture
def heartbeat(app: Celery, store: MemoryStore, roster: Roster) -> Iterator[Heartbeat]:
    yield Heartbeat(app._celery_exclusive, "broker", roster)  # type: ignore[attr-defined]
    store.clear()
