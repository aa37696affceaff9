"""The stages on which `make test` tries a test of workers. `make test-all` tries the test on all of them.

A stage is what a test varies of pool, broker, kind of queue, store and acknowledgement. `make test` tries
each pool, broker, queue and store of a test, and early and late acknowledgement in turn, so that the tests
of a file together try each pair. A test whose outcome depends on the stage is marked `each_stage`, and
`make test` tries it on all of them, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
        if isinstance(item, pytest.Function) and not item.get_closest_marker("each_stage"):
            files[str(item.path)].append(item)
    return [other for file in files.values() for other in _others_of_file(file)]


def _others_of_file(items: list[pytest.Function]) -> list[pytest.Function]:
    """Go by name: how the processes of a run sort their tests makes no difference."""
    groups: defaultdict[object, list[tuple[Stage, pytest.Function]]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        stage, others = _split(item)
        groups[item.function, others].append((stage, item))
    tried: Counter[object] = Counter()
    left = []
    for group in groups.values():
        chosen = choose([stage for stage, _ in group], tried)
        left += [item for stage, item in group if stage not in chosen]
    return left


def _split(item: pytest.Function) -> tuple[Stage, object]:
    """Return the stage of a test, and what identifies its other parameters."""
    spec = getattr(item, "callspec", None)
    params = dict(spec.params) if spec else {}
    stage = {name: params.pop(name) for name in VARIED if name in params}
    if "stage" in params:
        stage |= zip(("pool", "broker", "acks"), params.pop("stage"), strict=True)
    return stage, tuple((name, id(value)) for name, value in params.items())


def choose(stages: list[Stage], tried: Counter[object]) -> list[Stage]:
    """Choose stages with each value but of `acks`, those first whose pairs were tried least often."""
    chosen = [min(stages, key=lambda stage: _times(stage, tried))]
    wanted = {value for stage in stages for value in stage.items() if value[0] != "acks"}
    while True:
        tried.update(_pairs(chosen[-1]))
        wanted -= chosen[-1].items()
        if not wanted:
            return chosen
        chosen.append(min(stages, key=lambda stage: (-len(wanted & stage.items()), _times(stage, tried))))


def _times(stage: Stage, tried: Counter[object]) -> int:
    return sum(tried[pair] for pair in _pairs(stage))


def _pairs(stage: Stage) -> list[object]:
    """Return the pairs of a stage, or what it consists of alone."""
    return [*combinations(stage.items(), min(2, len(stage)))]
