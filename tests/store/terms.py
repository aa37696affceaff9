"""What may happen to the terms of a key: histories with costs, rates, limits of operators, and holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as some

from celery_exclusive.core.operations import Charge, Enqueue, Hold, Restore, SetLimit
from celery_exclusive.core.records import SECOND
from tests.store.histories import IDS, Action, Crowd, Follow, Give, Take, histories, keys, tokens

NONE: tuple[tuple[int, int], ...] = ()
SHORT, LONG = (2, SECOND), (5, 10 * SECOND)
costs = some.sampled_from((1, 1, 1, 1, 2, 5))
usual_rates = some.sampled_from((NONE, NONE, (SHORT,), (LONG,), (SHORT, LONG)))
lengths = some.sampled_from((None, SECOND, 10 * SECOND))
notes = some.sampled_from(("", 'a "b" \\ ü'))
ids = some.sampled_from(IDS)
changes = some.builds(
    Give,
    keys,
    some.builds(SetLimit, some.sampled_from((0, 1, 3, None)), lengths, notes, notes)
    | some.builds(Hold, some.just("") | ids, tokens, some.sampled_from((0, SECOND, 10 * SECOND)))
    | some.builds(Charge, ids, tokens, some.sampled_from((1, 3))),
)


@some.composite
def histories_with_terms(draw: Any) -> list[Action]:
    """The usual histories, of tasks with costs and rates. Most tasks of a history have the same rates."""
    usual, history = draw(usual_rates), list[Action]()
    for action in draw(histories):
        if draw(some.integers(0, 5)) == 5:
            history.append(draw(changes))
        rates = draw(usual_rates) if draw(some.integers(0, 15)) == 15 else usual
        history.append(with_terms(action, draw(costs), rates))
    return history


def with_terms(action: Action, cost: int, rates: tuple[tuple[int, int], ...]) -> Action:
    if isinstance(action, (Take, Follow)):
        return replace(action, cost=cost, rates=rates)
    if isinstance(action, Crowd):
        return replace(action, cost=cost)
    if isinstance(action, Give) and isinstance(action.operation, (Enqueue, Restore)):
        return replace(action, operation=replace(action.operation, cost=cost, rates=rates))
    return action
