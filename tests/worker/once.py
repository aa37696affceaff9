"""The stages on which `make test` tries a test of workers. `make test-all` tries the test on all of them.

A stage is what a test varies of pool, broker, kind of queue, store and acknowledgement. `make test` tries
each test on one stage, and so many of them on more that the tests of a file together try each pair, such as
greenlets with RabbitMQ. A test whose outcome depends on the stage is marked `each_stage`, and `make test`
tries it on all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

import pytest

VARIED = ("pool", "queue_type", "store", "acks")
"""Parameters that are parts of a stage, beside `stage` itself."""
Stage = Mapping[str, object]


def others_of(items: Iterable[pytest.Item]) -> list[pytest.Function]:
    """Return the tests that `make test` leaves to `make test-all`."""
    files: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not any(
            map(item.get_closest_marker, ("each_stage", "large"))
        ):
            files[str(item.path)].append(item)
    return [other for file in files.values() for other in _others_of_file(file)]


def _others_of_file(items: list[pytest.Function]) -> list[pytest.Function]:
    """Go by name: how the processes of a run sort their tests makes no difference."""
    tests: defaultdict[object, list[tuple[Stage, pytest.Function]]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        stage, others = _split(item)
        tests[item.function, others].append((stage, item))
    chosen = choose([[stage for stage, _ in test] for test in tests.values()])
    return [
        item for test in tests.values() for stage, item in test if not any(stage is one for one in chosen)
    ]


def choose(tests: list[list[Stage]]) -> list[Stage]:
    """Choose a stage of each test, and more until all pairs are tried. Most untried pairs come first."""
    untried = {pair for stages in tests for stage in stages for pair in _pairs(stage)}
    chosen: list[Stage] = []

    def choose_of(stages: list[Stage]) -> None:
        chosen.append(max(stages, key=lambda stage: len(_pairs(stage) & untried)))
        untried.difference_update(_pairs(chosen[-1]))

    for stages in tests:
        choose_of(stages)
    while untried:
        choose_of([stage for stages in tests for stage in stages])
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
