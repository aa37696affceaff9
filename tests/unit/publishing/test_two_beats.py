"""Two beats with one schedule: `period=` of half of it keeps one of each two calls (how-to/periodic.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive.testing.lock_store import LockStore

SCHEDULE, TICKS = 60, 10


def publish(task: Any, store: LockStore, times: list[float]) -> None:
    before = 0.0
    for now in sorted(times):
        store.advance(now - before)
        task.delay("a")
        before = now


def ticks(first: float, jitter: float) -> list[float]:
    """The times of one beat, each early or late by so much."""
    return [100 + first + SCHEDULE * tick + jitter * (-1) ** tick for tick in range(TICKS)]


@pytest.mark.promise(
    "Two beats with one schedule send one tick of each two with a `period` of half of it",
    name="two beats",
    broke="a period of the whole schedule",
)
@pytest.mark.parametrize("jitter", [0, 1], ids=["punctual", "a second early or late"])
@pytest.mark.parametrize("apart", [0, 1, 25, 35, 59])
def test_one_call_per_schedule_is_published_however_far_two_beats_are_apart(
    lock_store: LockStore,
    make_task: Callable[..., Any],
    sent: Callable[[], list[Any]],
    apart: int,
    jitter: int,
) -> None:
    task = make_task(period=SCHEDULE / 2)
    publish(task, lock_store, ticks(0, jitter) + ticks(apart, 0))
    assert len(sent()) - TICKS in (0, 1)  # the beat that is ahead may be so once more at the end


@pytest.mark.proves("two beats")
def test_a_period_as_long_as_the_schedule_drops_every_other_call_that_is_a_little_early(
    lock_store: LockStore, make_task: Callable[..., Any], sent: Callable[[], list[Any]]
) -> None:
    publish(make_task(period=SCHEDULE), lock_store, ticks(0, 0.1))
    assert len(sent()) == TICKS / 2
