"""How many entries of a line a step reads."""

from __future__ import annotations

from random import Random

import pytest

from celery_exclusive.core.key_state import OFFERS_IN_LINE
from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Enqueue,
    ForceRelease,
    Operation,
    Reap,
    Recall,
    Release,
    Remove,
    Requeue,
    StandBehind,
    ids_of,
)
from celery_exclusive.core.records import NEVER, SECOND, SEVERAL, Document, Entry, Holder, reach
from tests.unit.stepping import TTL, Key

LIMITS = (1, 2, 5, 8, 20)


@pytest.mark.promise(
    "A step that reads as much of the line as `reach` says does what it does with all of it",
    figure="10,000 random keys",
    broke="red each: one slot less, one task less, expired leases counted as living ones, and as many tasks "
    "that step aside as the limit allows",
)
def test_a_step_that_reads_as_far_as_it_has_to_does_the_same_as_with_the_whole_line() -> None:
    chance = Random(17)
    for _ in range(10_000):
        key = _key(chance)
        operation = _operation(chance, key)
        count = reach(key.document, getattr(operation, "limit", 1), ids_of(operation), key.now)
        assert key.look(operation) == key.look(operation, count=count), (operation, key.document)


def _key(chance: Random) -> Key:
    """A key with leases and offers of which many have expired, and more tasks in line than it has slots."""
    limit = chance.choice(LIMITS)
    key, free = Key(limit), chance.choice([0, 0, 1, limit])
    key.now = 100 * TTL

    def time() -> int:
        return key.now + chance.choice([-1, SECOND])

    are_dead = chance.random()
    holders = [
        Holder(f"h{number}", "token", key.now + (-1 if chance.random() < are_dead else TTL), number + 1)
        for number in range(limit - free)
    ]
    unread = chance.choice([0, 0, len(holders) // 2])
    queue = chance.choice(["", SEVERAL])
    key.document = Document(limit, key.now, tuple(holders[unread:]), "today", unread=unread, queue=queue)
    for number in range(chance.choice([0, 3, 60])):
        offers = chance.choice([0, 1, OFFERS_IN_LINE, OFFERS_IN_LINE])
        key.entries[f"w{number}"] = Entry(f"w{number}", number, time(), offers)
    for number in range(chance.choice([0, 3, 60])):
        key.entries[f"a{number}"] = Entry(f"a{number}", number, time(), OFFERS_IN_LINE, "aside")
    for holder in holders:
        if chance.random() < 0.2:
            key.entries[holder.id] = Entry(holder.id, holder.fence, offers=1, state="behind")
    return key


def _operation(chance: Random, key: Key) -> Operation:
    holders = [holder.id for holder in key.document.holders]
    id, other = (chance.choice(chance.choice([[*key.entries], holders, []]) or ["new"]) for _ in range(2))
    asked = Acquire(
        id,
        chance.choice(["token", "other"]),
        TTL,
        chance.choice([key.document.limit, *LIMITS]),
        promoted=chance.choice([None, "today"]),
        message=chance.choice([None, b"message"]),
        takes_over=chance.choice([None, (other, "queued")]),
    )
    operations: list[Operation] = [
        asked,
        asked,
        Release(id, "token"),
        Release(id, "token", "open"),
        Requeue(id, "token", TTL),
        Remove(id),
        Recall(id),
        StandBehind(id),
        ForceRelease(id),
        AcquireAlone(id, "token", TTL, inherits=chance.choice([None, (other, "token")])),
        Enqueue(id, b"message", asked.limit),
        Reap(chance.choice([0, NEVER])),
    ]
    return chance.choice(operations)
