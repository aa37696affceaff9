"""What `make test` leaves to `make test-all`: stages of tests of workers, and few whole tests."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product

import pytest

from tests.conftest import COLLECTED
from tests.worker.once import Stage, choose

WHOLE = {
    "tests/bench/test_bench.py::test_a_call_is_measured_that_other_pages_state",
    "tests/bench/test_bench.py::test_the_steps_of_a_task_are_traced_in_each_process",
    "tests/demo/test_corpus.py::test_every_document_is_imported_or_noted_as_bad_with_the_reason_and_leaves_no_lock",
    "tests/demo/test_demo.py::test_without_our_options_the_same_load_overlaps",
    "tests/demo/test_newcomer.py::test_the_commands_of_the_tutorial_print_what_the_page_shows",
    "tests/django/test_browser.py::test_an_operator_sees_locks_and_lines_and_releases_what_no_task_runs_under",
    "tests/store/test_cluster.py::test_eight_processes_are_never_two_at_once_while_slots_move_and_replicas_take_over",
    "tests/store/test_odd_rows.py::test_an_odd_word_in_any_field_of_redis_fails_calls_of_its_own_key_alone",
    "tests/store/test_redis_tls.py::test_the_nodes_of_a_cluster_are_found_and_followed_with_tls",
    "tests/worker/crashes/test_crashes.py::test_all_points",
    "tests/worker/test_as_celery.py::test_endings_of_messages_of_rabbitmq_are_reported_as_plain_celery_reports_them",
    "tests/worker/test_rates.py::test_twenty_workers_keep_their_rates_while_some_die_between_grant_and_body",
}
"""Tests that take more than five seconds of a processor, beside others of the same kind; and sweeps."""


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


def test_a_test_whose_outcome_depends_on_its_stage_tries_each_part() -> None:
    test = stages(("prefork", "threads", "gevent"))
    chosen = choose([test], in_parts={0})
    assert {part for stage in chosen for part in stage.items()} == {
        part for stage in test for part in stage.items()
    }
    assert len(choose([test, stages(("prefork",))], in_parts={1})) < len(test)


def pairs_of(stages: list[Stage]) -> set[object]:
    return {pair for stage in stages for pair in combinations(stage.items(), 2)}


def test_each_test_has_a_part_in_make_test_but_a_few_that_are_named(request: pytest.FixtureRequest) -> None:
    marks: defaultdict[str, set[bool]] = defaultdict(set)
    for item in request.config.stash[COLLECTED]:
        marks[item.nodeid.partition("@")[0].partition("[")[0]].add(
            item.get_closest_marker("large") is not None
        )
    kit = "tests/store/test_conformance.py::"
    assert {name for name, found in marks.items() if found == {True} and not name.startswith(kit)} <= WHOLE
