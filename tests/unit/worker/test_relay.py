"""Which request gets the next slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
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
    ("rule", "expected"),
    [
        (relay.longest_line, ["long", "short", "shorter", "x", "y"]),
        (relay.next_delivered, ["x", "short", "long", "shorter", "y"]),
        (relay.first_handed_on, ["short", "long", "shorter", "x", "y"]),
    ],
)
def test_each_rule_puts_one_request_before_all_others(rule: Callable[..., Any], expected: list[str]) -> None:
    waiting = deque([waits("x"), waits("short", 2), waits("y"), waits("long", 9), waits("shorter", 1)])
    relay.arrange(waiting, rule)
    assert names(waiting) == expected


def test_without_a_delivered_request_the_first_that_was_handed_on_has_its_turn() -> None:
    waiting = deque([waits("first", 1), waits("second", 5)])
    relay.arrange(waiting, relay.next_delivered)
    assert names(waiting) == ["first", "second"]


def test_neither_long_lines_nor_many_deliveries_keep_a_request_from_its_turn() -> None:
    """A long line goes on for ever, and one slot becomes free at a time."""
    waiting = deque([waits("once"), waits("x"), waits("short", 1), waits("long", 99)])
    ran = []
    for rule in islice(cycle(relay.RULES), 15):
        waiting.append(waits("long", 99))
        relay.arrange(waiting, rule)
        ran += names(deque([waiting.popleft()]))
    assert {"once", "x", "short"} <= {*ran}
    assert ran.count("long") > 4
