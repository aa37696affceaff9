"""A plan: operations, each of which depends on the answers before it. Pure: no I/O, no clock, no Celery.

A plan yields operations with their keys, is sent the store's answers, and returns an outcome. Publishers and
workers run plans on a store, the explorer runs them on `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from celery_exclusive.core.operations import Answer, KeyOperation

T = TypeVar("T")
Plan = Generator["Ask", Answer, T]


@dataclass(frozen=True, slots=True)
class Ask:
    """One operation on one key, as a plan requests it.

    With `park`, or with an operation that recovers, the request carries the message, with `joins` as a
    duplicate of that task. Without an operation the answer names the key's holders. With `may_fail` the plan
    continues as after `Applied(False)` if the store does not answer soon.
    """

    key: str
    operation: KeyOperation | None
    park: bool = False
    may_fail: bool = False
    joins: str | None = None


def run_plan(plan: Plan[T], ask: Callable[[Ask], Answer]) -> T:
    """Run a plan: `ask` sends each operation to a store and returns the answer."""
    try:
        asked = next(plan)
        while True:
            asked = plan.send(ask(asked))
    except StopIteration as end:
        result: T = end.value
        return result
