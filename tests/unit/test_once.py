"""What `make test` leaves to `make test-all`: some stages of tests of workers, and hardly a whole test."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations, product

import pytest

from tests.conftest import COLLECTED
from tests.worker.once import choose

BROWSER = {
    "tests/django/test_browser.py::test_an_operator_sees_locks_and_lines_and_releases_what_no_task_runs_under"
}


@pytest.mark.parametrize("pools", [("prefork",), ("prefork", "threads", "gevent")])
def test_make_test_tries_each_pool_and_each_broker_of_a_test(pools: tuple[str, ...]) -> None:
    stages = [*product(pools, ("redis", "rabbitmq"), (True, False))]
    chosen = choose(stages, Counter())
    assert len(chosen) == max(len(pools), 2)
    for place in (0, 1):
        assert {stage[place] for stage in chosen} == {stage[place] for stage in stages}


def test_the_tests_of_a_file_together_try_each_pair_of_pool_broker_and_acknowledgement() -> None:
    stages = [*product(("prefork", "threads"), ("redis", "rabbitmq"), (True, False))]
    tried: Counter[object] = Counter()
    chosen = [stage for _ in range(4) for stage in choose(stages, tried)]
    pairs = {pair for stage in stages for pair in combinations(enumerate(stage), 2)}
    assert {pair for stage in chosen for pair in combinations(enumerate(stage), 2)} == pairs


def test_each_test_but_the_browser_has_a_part_in_make_test(request: pytest.FixtureRequest) -> None:
    marks: defaultdict[str, set[bool]] = defaultdict(set)
    for item in request.config.stash[COLLECTED]:
        marks[item.nodeid.partition("[")[0]].add(item.get_closest_marker("large") is not None)
    kit = "tests/store/test_conformance.py::"
    assert {name for name, found in marks.items() if found == {True} and not name.startswith(kit)} <= BROWSER
