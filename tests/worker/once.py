"""The stages on which `make test` tries a test of workers. `make test-all` tries the test on all of them.

A stage is what a test varies of pool, broker, kind of queue, store and acknowledgement. `make test` tries
each test on one stage, and so many of them on more that the tests of a file together try each pair, such as
greenlets with RabbitMQ. A test whose outcome depends on the stage is marked `each_part`, and `make test`
tries it with each pool, each broker and both acknowledgements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from itertools import combinations

import pytest

VARIED = ("pool", "queue_type", "store", "acks")
"""Parameters that are parts of a stage, beside `stage` itself."""
Stage = Mapping[str, object]


def others_of(items: Iterable[pytest.Item]) -> list[pytest.Function]:
    """Return the tests that `make test` leaves to `make test-all`."""
    files: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("large"):
            files[str(item.path)].append(item)
    return [other for file in files.values() for other in _others_of_file(file)]


def _others_of_file(items: list[pytest.Function]) -> list[pytest.Function]:
    """Go by name: how the processes of a run sort their tests makes no difference."""
    tests: defaultdict[object, list[tuple[Stage, pytest.Function]]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        stage, others = _split(item)
        tests[item.function, others].append((stage, item))
    in_parts = {
        number for number, test in enumerate(tests.values()) if test[0][1].get_closest_marker("each_part")
    }
    chosen = choose([[stage for stage, _ in test] for test in tests.values()], in_parts)
    return [
        item for test in tests.values() for stage, item in test if not any(stage is one for one in chosen)
    ]


def choose(tests: list[list[Stage]], in_parts: Container[int] = ()) -> list[Stage]:
    """Choose a stage of each test, or so many that each part is tried, and more until all pairs are tried.

    What tries most that is untried comes first.
    """
    untried = {pair for stages in tests for stage in stages for pair in _pairs(stage)}
    chosen: list[Stage] = []

    def choose_of(stages: list[Stage], parts: set[object]) -> None:
        def count_untried(stage: Stage) -> tuple[int, int]:
            return len(parts & stage.items()), len(_pairs(stage) & untried)

        chosen.append(max(stages, key=count_untried))
        untried.difference_update(_pairs(chosen[-1]))
        parts.difference_update(chosen[-1].items())

    for number, stages in enumerate(tests):
        parts = {part for stage in stages for part in stage.items()} if number in in_parts else set()
        choose_of(stages, parts)
        while parts:
            choose_of(stages, parts)
    while untried:
        choose_of([stage for stages in tests for stage in stages], set())
    return chosen


def _split(item: pytest.Function) -> tuple[Stage, object]:
    """Return the stage of a test, and what identifies its other parameters."""
    spec = getattr(item, "callspec", None)
    params = dict(spec.params) if spec else {}
    stage = {name: params.pop(name) for name in VARIED if name in params}
    if "stage" in params:
        stage |= zip(("pool", "broker", "acks"), params.pop("stage"), strict=True)
    return stage, tuple((name, id(value)) for name, value in params.items())


def _pairs(stage: Stage) -> set[object]:
    """Return the pairs of a stage, or what it consists of alone."""
    return {*combinations(stage.items(), min(2, len(stage)))}
