"""When a reaper recovers dead runs: after all clocks of the store have run on for long enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_exclusive import Exclusive, Unique
from celery_exclusive.core.operations import Applied
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import Reply
from celery_exclusive.worker.reaper import Reaper

TTL = 30
LONGEST = 10 * SECOND
"""A third of the ttl: a pause of that length counts as none."""


class Told:
    """A store that says what time it is, and notes until when it is to recover."""

    def __init__(self) -> None:
        self.times: tuple[int, ...] = ()
        self.asked: list[int] = []

    def reap(self, limit: int = 100, every: int = 0, *, recovers_until: int) -> Reply:
        self.asked.append(recovers_until)
        return Reply(Applied(True), time=max(self.times), times=self.times if len(self.times) > 1 else ())


def recovers(sweeps: list[tuple[int, ...]], **options: Exclusive | Unique) -> list[int]:
    """How many seconds after the sweep before each one recovers; 0: it does not. The last one has no time."""
    store = Told()
    services: Any = SimpleNamespace(
        store=store,
        settings=SimpleNamespace(exclusive_ttl=TTL, exclusive_reap_period=1, exclusive_offer=5),
        app=SimpleNamespace(tasks={"task": options}),
        exclusive=lambda task: task.get("exclusive"),
        unique=lambda task: task.get("unique"),
        ttl=lambda option: ((option and option.ttl) or TTL) * SECOND,
        courier=SimpleNamespace(wait=lambda seconds: None),
    )
    reaper, before, found = Reaper(services, lambda epoch: None), 0, []
    for times in (*sweeps, sweeps[-1]):
        store.times = tuple(time * SECOND for time in times)
        reaper.sweep()
        found.append(max(0, store.asked[-1] - before) // SECOND)
        before = max(store.times)
    return found


@pytest.mark.proves("clocks of nodes")
def test_the_reaper_recovers_when_the_only_clock_has_run_on_for_half_a_ttl() -> None:
    assert recovers([(1000,), (1008,), (1015,), (1016,)]) == [0, 0, 0, 10, 10]
    assert recovers([(1000,), (1011,), (1016,)]) == [0, 0, 0, 0]


@pytest.mark.proves("clocks of nodes")
def test_clocks_that_are_apart_but_run_on_are_calm() -> None:
    assert recovers([(1000, 5000), (1008, 5008), (1015, 5015)]) == [0, 0, 0, 10]


@pytest.mark.proves("clocks of nodes")
@pytest.mark.parametrize("step", [20, -5])
@pytest.mark.parametrize("other", [1000, 9000])
def test_one_clock_that_makes_a_step_lets_all_wait(step: int, other: int) -> None:
    calm = [(5000 + time, other + time) for time in (0, 8, 15)]
    assert recovers([*calm, (5016 + step, other + 16), (5017 + step, other + 17)])[4:] == [0, 0]


@pytest.mark.proves("clocks of nodes")
def test_a_node_that_does_not_answer_for_long_lets_all_wait() -> None:
    silent = [(1000, 5000), (1008, 5008), (1015, 5015), (1020, 5015), (1026, 5026)]
    assert recovers(silent) == [0, 0, 0, 10, 10, 0]


@pytest.mark.proves("clocks of nodes")
def test_each_clock_has_to_run_on_for_half_a_ttl() -> None:
    assert recovers([(1000, 5000), (1008, 5004), (1015, 5008)]) == [0, 0, 0, 0]


@pytest.mark.promise(
    "After a silence of the store that is longer than a third of the shortest `ttl` of a task, or of its "
    "unique key, all sweeps wait",
    broke="red before for unique keys: only the ttls of locks were asked",
)
@pytest.mark.parametrize(
    "options", [{"exclusive": Exclusive(ttl=9)}, {"unique": Unique(ttl=9)}], ids=["exclusive", "unique"]
)
def test_the_shortest_ttl_of_a_task_says_which_silence_lets_all_wait(
    options: dict[str, Exclusive | Unique],
) -> None:
    assert recovers([(1000 + 3 * time,) for time in range(7)], **options)[-1] == 3
    assert recovers([*((1000 + 3 * time,) for time in range(6)), (1019,)], **options)[-1] == 0
