"""The stages on which `make test` tries a test of workers. `make test-all` tries the test on all of them.

A stage is a pool, a broker and a way to acknowledge. `make test` tries each pool and each broker of a test,
and the ways to acknowledge in turn, so that the tests of a file together try each pair. A test whose outcome
depends on the stage is marked `each_stage`, and `make test` tries it on all of them, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest

Stage = tuple[Any, ...]
"""A pool, a broker and a way to acknowledge; None for what the test does not vary."""


def others_of(items: Iterable[pytest.Item]) -> list[pytest.Function]:
    """Return the tests that `make test` leaves to `make test-all`."""
    files: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("each_stage"):
            files[str(item.path)].append(item)
    return [other for file in files.values() for other in _others_of_file(file)]


def _others_of_file(items: list[pytest.Function]) -> list[pytest.Function]:
    """Go by name: how the processes of a run sort their tests makes no difference."""
    groups: defaultdict[object, dict[Stage, pytest.Function]] = defaultdict(dict)
    for item in sorted(items, key=lambda item: item.nodeid):
        stage, others = _split(item)
        groups[item.function, others][stage] = item
    tried: Counter[object] = Counter()
    left = []
    for stages in groups.values():
        chosen = choose([*stages], tried)
        left += [item for stage, item in stages.items() if stage not in chosen]
    return left


def _split(item: pytest.Function) -> tuple[Stage, object]:
    """Return the stage of a test, and what identifies its other parameters."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return (None, None, None), None
    pool, broker, late = spec.params.get("stage", (None, None, spec.params.get("acks")))
    return (pool, broker, late), tuple(
        (name, id(value)) for name, value in spec.params.items() if name not in ("stage", "acks")
    )


def choose(stages: list[Stage], tried: Counter[object]) -> list[Stage]:
    """Choose stages with each pool and each broker, those first whose pairs were tried least often."""
    wanted = {(place, stage[place]) for stage in stages for place in (0, 1)}
    chosen: list[Stage] = []
    while wanted:
        best = min(
            (stage for stage in stages if stage not in chosen),
            key=lambda stage: (
                -len(wanted & {*enumerate(stage)}),
                sum(tried[pair] for pair in _pairs(stage)),
            ),
        )
        chosen.append(best)
        wanted = wanted - {*enumerate(best)}
        tried.update(_pairs(best))
    return chosen


def _pairs(stage: Stage) -> Iterable[object]:
    return combinations(enumerate(stage), 2)
