"""A roster, and the heartbeat that reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billiard.process import current_process
from celery import Celery

from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.worker.heartbeat import Heartbeat
from celery_exclusive.worker.roster import SharedRoster


@pytest.fixture
def roster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedRoster]:
    """One in which this process is a child."""
    monkeypatch.setattr(current_process(), "index", 0, raising=False)
    roster = SharedRoster(1)
    yield roster
    roster.close()


@pytest.fixture
def heartbeat(app: Celery, store: MemoryStore, roster: SharedRoster) -> Iterator[Heartbeat]:
    yield Heartbeat(app._celery_exclusive, "broker", roster)  # type: ignore[attr-defined]
    store.clear()
