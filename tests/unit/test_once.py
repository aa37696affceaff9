"""What `make test` leaves to `make test-all`: some stages of tests of workers, and hardly a whole test."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations, product

import pytest

from tests.conftest import COLLECTED
from tests.worker.once import Stage, choose

BROWSER = {
    "tests/django/test_browser.py::test_an_operator_sees_locks_and_lines_and_releases_what_no_task_runs_under"
}


def stages(pools: tuple[str, ...], brokers: tuple[str, ...] = ("redis", "rabbitmq")) -> list[Stage]:
    ways = product(pools, brokers, ("late", "early"))
    return [{"pool": pool, "broker": broker, "acks": acks} for pool, broker, acks in ways]


@pytest.mark.parametrize("pools", [("prefork",), ("prefork", "threads", "gevent")])
def test_make_test_tries_each_pool_and_each_broker_of_a_test(pools: tuple[str, ...]) -> None:
    chosen = choose(stages(pools), Counter())
    assert len(chosen) == max(len(pools), 2)
    for name in ("pool", "broker"):
        assert {stage[name] for stage in chosen} == {stage[name] for stage in stages(pools)}


@pytest.mark.parametrize("brokers", [("redis",), ("redis", "rabbitmq")])
def test_the_tests_of_a_file_together_try_each_pair_of_pool_broker_and_acknowledgement(
    brokers: tuple[str, ...],
) -> None:
    every = stages(("prefork", "threads"), brokers)
    tried: Counter[object] = Counter()
    chosen = [stage for _ in range(4) for stage in choose(every, tried)]
    assert pairs_of(chosen) == pairs_of(every)


def test_two_tests_that_vary_the_acknowledgement_alone_try_both_ways() -> None:
    tried: Counter[object] = Counter()
    ways: list[Stage] = [{"acks": "late"}, {"acks": "early"}]
    assert choose(ways, tried) != choose(ways, tried)


def pairs_of(stages: list[Stage]) -> set[object]:
    return {pair for stage in stages for pair in combinations(stage.items(), 2)}


def test_each_test_but_the_browser_has_a_part_in_make_test(request: pytest.FixtureRequest) -> None:
    marks: defaultdict[str, set[bool]] = defaultdict(set)
    for item in request.config.stash[COLLECTED]:
        marks[item.nodeid.partition("[")[0]].add(item.get_closest_marker("large") is not None)
    kit = "tests/store/test_conformance.py::"
    assert {name for name, found in marks.items() if found == {True} and not name.startswith(kit)} <= BROWSER
