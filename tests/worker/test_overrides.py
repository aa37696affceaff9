"""Whatever users override, with super() or without, and whatever that raises: the lease is given back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery.utils import uuid

from celery_exclusive import lock
from tests.worker.lab import Lab, eventually
from tests.worker.stage import Stage, on_stages

MODULE = "tests.worker.shop_overrides"
HOOKS = ("before_start", "on_success", "on_failure", "on_retry", "after_return", "__call__")
OF_REQUESTS = ("on_failure", "on_success", "on_timeout", "execute_using_pool")
WAYS = ("with super", "without super", "raising", "rejecting")
BODIES = ("return", "raise", "retry")
BETWEEN_RUNS = [f"on_retry {way}, retry" for way in ("raising", "rejecting")]
"""Which state is stored last is a race in plain Celery, since the end of the first run has two."""
UNTOLD = ("without super", "raising")
"""So nobody acknowledges the message of a dead child, nor gives it back: its copy in the store runs."""
DEATHS = {"": "die", "limited ": "sleep", "cut ": "sleep"}


@dataclass(frozen=True)
class Pair:
    """The same task twice, plain and exclusive, told to end in the same way."""

    task: str
    how: str
    plain: str = field(default_factory=uuid)
    exclusive: str = field(default_factory=uuid)

    @property
    def key(self) -> str:
        return f"{self.task}, {self.how}"

    def send(self, lab: Lab, kind: str) -> None:
        id = self.plain if kind == "plain" else self.exclusive
        lab.task(f"{kind} {self.task}").apply_async((self.key, self.how), task_id=id)

    def outcome(self, lab: Lab, id: str) -> tuple[object, ...]:
        runs = len(lab.journal.events("start", id=id))
        if self.key in BETWEEN_RUNS:
            return (runs,)
        result = lab.app.AsyncResult(id)
        return runs, result.state, re.sub(r"Job: \d+", "Job", str(result.result))


def wait_for_none(look: Callable[[], Any], what: str, timeout: float = 60) -> None:
    """Wait until there is none left; who waits in vain is told which are."""
    try:
        eventually(lambda: not look(), what, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}: {look()}") from None


def differences(lab: Lab, pairs: Iterable[Pair]) -> dict[str, Any]:
    outcomes = {pair.key: [pair.outcome(lab, id) for id in (pair.plain, pair.exclusive)] for pair in pairs}
    return {key: (plain, ours) for key, (plain, ours) in outcomes.items() if plain != ours}


@pytest.mark.promise(
    "Overridden hooks, `__call__` and Request methods, with and without `super()`, raising too, change "
    "neither the end of a task nor of its lease (ttl 600 s)",
    broke="no `finally` in `on_failure`; release only after a normal end",
)
@on_stages("prefork", "threads", brokers=("redis",), early_is_large=True)
def test_overrides_change_neither_the_end_of_a_task_nor_the_end_of_its_lease(stage: Stage) -> None:
    lab = stage.make_lab(MODULE, exclusive_ttl=600, worker_prefetch_multiplier=0)  # some never acknowledge
    stage.start_worker(lab, slots=6)
    pairs = [Pair(f"{hook} {way}", how) for hook in HOOKS for way in WAYS for how in BODIES]
    pairs += [Pair(f"Request.{method} {way}", "raise") for method in OF_REQUESTS for way in WAYS]
    if stage.pool == "prefork":
        pairs += [
            Pair(f"{limit}Request.{method} {way}", how)
            for limit, how in DEATHS.items()
            for method in ("on_failure", "on_timeout")
            for way in WAYS[:3]
            if method == "on_timeout" or way not in UNTOLD
        ]
    with ExitStack() as locks:
        for pair in pairs:
            locks.enter_context(lock(pair.key, app=lab.app))
            pair.send(lab, "exclusive")
        for pair in pairs:
            lab.wait_for_line(1, "following", pair.key)
            lab.send("following", pair.key)
        for pair in pairs:
            lab.wait_for_line(2, "following", pair.key)
    for pair in pairs:
        pair.send(lab, "plain")
    keys = {pair.key for pair in pairs}
    follow = lab.task("following")
    wait_for_none(
        lambda: keys - {event["key"] for event in lab.journal.events("start", tag="following")},
        "the start of all that is next, as if no lease had to run out, but for",
        120,
    )
    wait_for_none(lambda: differences(lab, pairs), "the outcomes of plain Celery, without", 120)
    wait_for_none(lambda: [key for key in keys if follow.lock_state(key).is_running], "free keys, without")
    told = {(event["name"], event["way"]) for event in lab.journal.events("override")}
    assert told >= {(hook, way) for hook in HOOKS for way in WAYS}
    assert told >= {("on_failure", way) for way in WAYS}
