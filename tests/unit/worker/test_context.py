"""Whether a worker stops, as its runs see it."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.worker import state

from celery_exclusive.worker.context import WorkerContext


@pytest.fixture
def worker(app: Celery, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    monkeypatch.setattr(state, "should_stop", None)
    return WorkerContext(app._celery_exclusive)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("told", "stops"), [(None, False), (False, False), (0, True)])
def test_a_worker_stops_once_celery_has_noted_an_exit_code(
    worker: WorkerContext, monkeypatch: pytest.MonkeyPatch, told: object, stops: bool
) -> None:
    monkeypatch.setattr(state, "should_stop", told)
    assert worker.is_stopping is stops


def test_a_worker_whose_bodies_run_in_threads_stops_once_its_main_thread_has_said_so(
    worker: WorkerContext,
) -> None:
    worker.roster.stop()
    assert worker.is_stopping
