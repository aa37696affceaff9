"""Which request gets the next slot."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from celery_exclusive.worker import relay
from celery_exclusive.worker.handed_on import NoChannel


def waits(name: str, line: int | None = None) -> Any:
    """A request that waits for a slot, as Celery keeps it: a callback with its arguments."""
    channel = None if line is None else NoChannel(line, print)
    return (print, (SimpleNamespace(name=name, message=SimpleNamespace(channel=channel)),), {})


def names(waiting: deque[Any]) -> list[str]:
    return [request.name for _, (request,), _ in waiting]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (0, ["long", "x", "short", "y", "shorter", "z"]),
        (1, ["x", "long", "y", "short", "shorter", "z"]),
        (4, ["short", "long", "x", "shorter", "y", "z"]),
    ],
)
def test_slots_are_for_long_lines_deliveries_and_what_waits_longest(turn: int, expected: list[str]) -> None:
    names_and_lines = [("x", None), ("short", 2), ("y", None), ("long", 9), ("shorter", 1), ("z", None)]
    waiting = deque([waits(name, line) for name, line in names_and_lines])
    relay.arrange(waiting, turn)
    assert names(waiting) == expected


def test_without_deliveries_the_longest_line_comes_first() -> None:
    waiting = deque([waits("short", 1), waits("long", 5)])
    relay.arrange(waiting, 1)
    assert names(waiting) == ["long", "short"]


def test_neither_long_lines_nor_many_deliveries_keep_a_request_from_its_turn() -> None:
    """A long line goes on for ever, and one slot becomes free at a time."""
    waiting = deque([waits("once"), waits("x"), waits("short", 1), waits("long", 99)])
    ran = []
    for turn in range(15):
        waiting.append(waits("long", 99))
        relay.arrange(waiting, turn)
        ran += names(deque([waiting.popleft()]))
    assert {"once", "x", "short"} <= {*ran}
    assert ran.count("long") > 4
