"""A limit that lets all in, on a long line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_exclusive.core.operations import Acquire, Granted
from celery_exclusive.core.records import OFFERED_AT_ONCE, SECOND
from tests.worker.lab import Lab
from tests.worker.line import park_published

pytestmark = pytest.mark.proves("large limit")

SLOTS = 4


@pytest.mark.parametrize("count", [400, pytest.param(1_000, marks=pytest.mark.large)])
def test_a_long_line_is_admitted_a_hundred_at_a_time(make_lab: Callable[..., Lab], count: int) -> None:
    lab = make_lab(task_acks_late=True, exclusive_offer=60, module="tests.worker.shop_crowd")
    store = lab.app._celery_exclusive.store  # type: ignore[attr-defined]
    key = lab.task("wait").lock_state("k").key
    tags = [f"{number}" for number in range(count)]
    holder = Acquire("holder/1", "token of holder", 600 * SECOND)
    assert isinstance(store.apply(key, holder).answer, Granted)
    for tag in tags:
        lab.send("wait", "k", tag=tag)
    park_published(lab)
    assert lab.waiting("wait", "k") == len(tags)
    lab.start_worker(concurrency=SLOTS)
    lab.send("wait", "k", tag="last")
    seen = [0]
    while len(lab.journal.tags("end")) <= len(tags):
        seen.append(lab.messages_at_the_broker())
    # A hundred offers, and what runs, or has run and is not yet acknowledged, or is counted twice on its way.
    assert OFFERED_AT_ONCE / 2 < max(seen) < 2 * OFFERED_AT_ONCE
    assert sorted(lab.journal.tags()) == sorted([*tags, "last"])
