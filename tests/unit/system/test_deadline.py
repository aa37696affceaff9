"""Budgets of store calls."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from celery_exclusive.system.deadline import Budget, at_most

pytestmark = pytest.mark.proves("silent store is asked once")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock: a list with its time."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_a_budget_is_spent_by_store_calls_alone(now: list[float]) -> None:
    budget = Budget(1)
    for left in (1, 0.75, 0.5):
        with budget:
            assert at_most(60) == left
            now[0] += 0.25
        now[0] += 60
    assert budget.left == 0.25
    with budget:
        now[0] += 60
    assert budget.left == 0
    assert at_most(60) == 60


def test_calls_that_are_answered_at_once_spend_no_budget(now: list[float]) -> None:
    budget = Budget(1)
    for _ in range(1000):
        with budget:
            now[0] += 0.01
    assert budget.left == 1
    with suppress(TimeoutError), budget:
        now[0] += 0.0625
        raise TimeoutError
    assert budget.left == 0.9375


def test_calls_that_are_answered_at_once_end_halfway_to_a_hard_limit(now: list[float]) -> None:
    budget, calls = Budget(0.8, limit_at=now[0] + 2), 0
    while budget.left:
        with budget:
            now[0] += 0.0625
            calls += 1
    assert calls == 16


def test_a_budget_leaves_half_of_the_time_until_a_hard_limit_to_others(now: list[float]) -> None:
    budget = Budget(0.8, limit_at=now[0] + 10)
    assert budget.left == 0.8
    now[0] += 9.5
    assert budget.left == 0.25
    now[0] += 60  # nothing enforces it
    assert budget.left == 0.8
