"""What `make test` leaves to `make test-all`: some stages of tests of workers, and hardly a whole test."""

from __future__ import annotations

from collections import defaultdict
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


def test_make_test_tries_each_test_on_a_stage_and_few_on_more() -> None:
    tests = [stages(("prefork", "threads", "gevent")) for _ in range(20)]
    chosen = choose(tests)
    assert [any(stage in chosen for stage in test) for test in tests] == [True] * 20
    assert len(chosen) == 20


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("brokers", [("redis",), ("redis", "rabbitmq")])
def test_the_tests_of_a_file_together_try_each_pair_of_pool_broker_and_acknowledgement(
    brokers: tuple[str, ...], count: int
) -> None:
    tests = [stages(("prefork", "threads"), brokers) for _ in range(count)]
    assert pairs_of(choose(tests)) == pairs_of(tests[0])


def test_two_tests_that_vary_the_acknowledgement_alone_try_both_ways() -> None:
    tests: list[list[Stage]] = [[{"acks": "late"}, {"acks": "early"}] for _ in range(2)]
    assert choose(tests) == [{"acks": "late"}, {"acks": "early"}]


def pairs_of(stages: list[Stage]) -> set[object]:
    return {pair for stage in stages for pair in combinations(stage.items(), 2)}


def test_each_test_but_the_browser_has_a_part_in_make_test(request: pytest.FixtureRequest) -> None:
    marks: defaultdict[str, set[bool]] = defaultdict(set)
    for item in request.config.stash[COLLECTED]:
        marks[item.nodeid.partition("[")[0]].add(item.get_closest_marker("large") is not None)
    kit = "tests/store/test_conformance.py::"
    assert {name for name, found in marks.items() if found == {True} and not name.startswith(kit)} <= BROWSER
