"""A large limit on a long line: what one acquire offers, reads and costs does not grow with the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_exclusive.core.operations import Granted, Parked
from celery_exclusive.core.records import OFFERED_AT_ONCE
from tests.store.operations import give, take
from tests.store.test_redis import RedisStore, commands, redis, store

__all__ = ["redis", "store"]
BEFORE, MANY = 300, 10_000


KEYS = ("small", "large", "huge")


@pytest.fixture
def lines(store: RedisStore, redis: Any) -> None:
    """Keys with a holder and 10,000 in line, of which the first have messages."""
    for key in KEYS:
        for id in ("holder", *map(str, range(BEFORE))):
            store.apply(key, take(id))
        last = redis.zscore(f"cx2:{{0}}:q:{key}", str(BEFORE - 1))
        redis.zadd(f"cx2:{{0}}:q:{key}", {str(id): last + id for id in range(BEFORE, MANY)})
        *meta, _, aside, behind = redis.hget(f"cx2:{{0}}:l:{key}", "").split()
        redis.hset(f"cx2:{{0}}:l:{key}", "", b" ".join([*meta, str(MANY).encode(), aside, behind]))


@pytest.mark.promise(
    "A large limit on a long line: a hundred slots are offered at a time, and a step costs and reads no "
    "more than under a limit of a hundred",
    name="large limit",
    broke="red before",
)
@pytest.mark.usefixtures("lines")
def test_an_acquire_costs_as_many_commands_under_a_limit_of_a_million_as_under_one_of_a_hundred(
    store: RedisStore, redis: Any
) -> None:
    costs, sent = [], []
    # There is a slot for everybody under the last of these limits, so a newcomer gets one.
    expected = [(OFFERED_AT_ONCE + 1, Parked), (MANY, Parked), (1_000_000, Granted)]
    for key, (limit, answer) in zip(KEYS, expected, strict=True):
        commands_before, bytes_before = commands(redis), redis.info("stats")["total_net_output_bytes"]
        replies = [store.apply(key, take(f"newcomer {number}", limit=limit)) for number in range(3)]
        costs.append(commands(redis) - commands_before)
        sent.append(redis.info("stats")["total_net_output_bytes"] - bytes_before)
        # Of 10,000 who wait a hundred are offered a slot, once.
        assert [len(reply.wake) for reply in replies] == [OFFERED_AT_ONCE, 0, 0]
        assert {type(reply.answer) for reply in replies} == {answer}
    assert costs[2] <= costs[1] == costs[0]
    assert max(sent[1:]) < 1.2 * sent[0]


@pytest.mark.promise(
    "A task that releases one of a hundred slots, and the next one that takes it, read as many tasks of the "
    "line as under a limit of one",
    name="slots of living leases",
    figure="a task through a line of 1,000: 0.7 ms of Redis in place of 2.6 under a limit of 100",
    broke="red before: 202 tasks in place of 4",
)
def test_a_task_under_a_limit_of_a_hundred_reads_as_many_of_the_line_as_under_one_of_one(
    store: RedisStore, redis: Any
) -> None:
    for limit in (1, 100):
        for number in range(limit + BEFORE):
            store.apply(f"limit {limit}", take(str(number), limit=limit))

    def reads(limit: int) -> list[str]:
        """The ends of the parts of the line that are read."""
        key, commands = f"limit {limit}", list[str]()
        with redis.monitor() as monitor:
            (wake,) = store.apply(key, give("0")).wake
            promoted = replace(take(wake.id, limit=limit), promoted=wake.epoch)
            assert isinstance(store.apply(key, promoted).answer, Granted)
            redis.echo("over")
            while "over" not in (command := monitor.next_command()["command"]):
                commands.append(command)
        return [it.split()[-2] for it in commands if it.startswith("ZRANGE ") and it.endswith("WITHSCORES")]

    assert reads(1) == reads(100) == ["3", "3"]
