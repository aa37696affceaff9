"""Histories in which keys have terms: costs, rates, parts, limits of operators, and holds."""

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
parts = some.sampled_from(("acme", "acme", "b c", "ü/1", ""))
weights = some.sampled_from((1, 1, 1, 3, 100))
changes = some.builds(
    Give,
    keys,
    some.builds(SetLimit, some.sampled_from((0, 1, 3, None)), lengths, notes, notes)
    | some.builds(Hold, some.just("") | ids, tokens, some.sampled_from((0, SECOND, 10 * SECOND)))
    | some.builds(Charge, ids, tokens, some.sampled_from((1, 3))),
)


@some.composite
def histories_with_terms(draw: Any) -> list[Action]:
    """The usual histories, of tasks with costs, rates and parts. Most of a history have the same rates."""
    usual, history, has_parts = draw(usual_rates), list[Action](), draw(some.booleans())
    for action in draw(histories):
        if opens_a_window(action):
            continue
        if draw(some.integers(0, 5)) == 5:
            history.append(draw(changes))
        rates = draw(usual_rates) if draw(some.integers(0, 15)) == 15 else usual
        part = {"part": draw(parts), "weight": draw(weights)} if has_parts else {}
        history.append(with_terms(action, part, cost=draw(costs), rates=rates))
    return history


def with_terms(action: Action, part: dict[str, Any], **room: Any) -> Action:
    if isinstance(action, (Take, Follow)):
        return replace(action, **room, **part)
    if isinstance(action, Crowd):
        return replace(action, cost=room["cost"])
    if isinstance(action, Give) and isinstance(action.operation, Enqueue):
        return replace(action, operation=replace(action.operation, **room, **part))
    if isinstance(action, Give) and isinstance(action.operation, Restore):
        return replace(action, operation=replace(action.operation, **room))
    return action


def opens_a_window(action: Action) -> bool:
    """Whether it is a call that waits for others, of a key without terms."""
    return isinstance(action, Give) and isinstance(action.operation, Enqueue) and bool(action.operation.waits)
