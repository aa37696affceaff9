"""Histories in which keys have terms: costs, rates, parts, limits of operators, and holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as some

from celery_exclusive.core.operations import Charge, Enqueue, Hold, Restore, SetLimit
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import NO_LIMIT
from tests.store.histories import IDS, Action, Crowd, Follow, Give, Take, histories, keys, tokens

NONE: tuple[tuple[int, int], ...] = ()
SHORT, LONG = (2, SECOND), (5, 10 * SECOND)
costs = some.sampled_from((1, 1, 1, 1, 2, 5))
usual_rates = some.sampled_from((NONE, NONE, (SHORT,), (LONG,), (SHORT, LONG)))
lengths = some.sampled_from((None, SECOND, 10 * SECOND))
notes = some.sampled_from(("", 'a "b" \\ ü'))
ids = some.sampled_from(IDS)
parts = some.sampled_from(("acme", "acme", "b c", "ü/1", ""))
weights = some.sampled_from((1, 1, 1, 3, 100, 0))
part_limits = some.sampled_from((NO_LIMIT, 1, 2, 3))
TERMS = ("cost", "rates", "part", "weight", "part_limit", "part_rates")
"""The fields of a delivery that say what its key and its part allow."""


def changes(of: some.SearchStrategy[str]) -> some.SearchStrategy[Give]:
    """What operators and runs change of a key, or of one of these parts."""
    holds = some.sampled_from((0, SECOND, 10 * SECOND))
    return some.builds(
        Give,
        keys,
        some.builds(SetLimit, some.sampled_from((0, 1, 3, None)), lengths, notes, notes, of)
        | some.builds(Hold, some.just("") | ids, tokens, holds, of)
        | some.builds(Charge, ids, tokens, some.sampled_from((1, 3))),
    )


@some.composite
def histories_with_terms(draw: Any) -> list[Action]:
    """The usual histories, of tasks with costs, rates and parts, also with terms of their own.

    Most of a history have the same terms. Operators may change those of parts, too.
    """
    usual, history, has_parts = draw(usual_rates), list[Action](), draw(some.booleans())
    has_part_terms = has_parts and draw(some.integers(0, 3)) > 0
    of_part = {"part_limit": draw(part_limits), "part_rates": draw(usual_rates)} if has_part_terms else {}
    of = some.just("") | parts if has_part_terms else some.just("")
    for action in draw(histories):
        if opens_a_window(action):
            continue
        if draw(some.integers(0, 5)) == 5:
            history.append(draw(changes(of)))
        rates = draw(usual_rates) if draw(some.integers(0, 15)) == 15 else usual
        part = {"part": draw(parts), "weight": draw(weights), **of_part} if has_parts else {}
        if has_part_terms and draw(some.integers(0, 7)) == 7:
            part |= {"part_limit": draw(part_limits), "part_rates": draw(usual_rates)}
        history.append(with_terms(action, part, cost=draw(costs), rates=rates))
    return history


def with_terms(action: Action, part: dict[str, Any], **room: Any) -> Action:
    if isinstance(action, (Take, Follow)):
        return replace(action, **room, **part)
    if isinstance(action, Crowd):
        return replace(action, cost=room["cost"], part=part.get("part", ""))
    if isinstance(action, Give) and isinstance(action.operation, Enqueue):
        return replace(action, operation=replace(action.operation, **room, **part))
    if isinstance(action, Give) and isinstance(action.operation, Restore):
        of_part = part if "part_limit" in part else {}
        return replace(action, operation=replace(action.operation, **room, **of_part))
    return action


def opens_a_window(action: Action) -> bool:
    """Whether it is a call that waits for others, of a key without terms."""
    return isinstance(action, Give) and isinstance(action.operation, Enqueue) and bool(action.operation.waits)
