"""A task with a lock and a unique key: whoever waits for one of them keeps its turn at the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import Exclusive
from celery_exclusive.leases.operator_release import release
from tests.worker.lab import Lab

DEADLINE = 60


@pytest.mark.promise(
    "A task that waits for its lock and its unique key, one after the other, runs when both are free",
    broke="red before: dropped at its lock as an old copy",
)
def test_an_admitted_task_that_waits_for_its_unique_key_runs_when_that_is_free(
    make_lab: Callable[..., Lab], acks: dict[str, Any]
) -> None:
    lab = make_lab(module="tests.worker.shop_unique", **acks)
    lab.start_worker("w1", 3)
    holder = lab.send("both", "k", "holder", hold=True, options={"unique": None})
    lab.journal.wait_for("start", tag="holder")
    arrived = {"options": {"exclusive": Exclusive("key", order="arrived")}}
    first = lab.send("both", "k", "first", **arrived)
    lab.wait_until_in_line(first.id, "both", "k")
    services = lab.app._celery_exclusive  # type: ignore[attr-defined]
    (key,) = (key for key in services.store.scan() if key.startswith("u:"))
    release(services, key)  # as an operator may: the message is not lost
    second = lab.send("both", "k", "second", hold=True, **arrived)
    lab.wait_until_in_line(second.id, "both", "k")
    lab.open("holder")
    lab.journal.wait_for("start", tag="second")
    lab.open("second")
    results = [result.get(timeout=DEADLINE) for result in (holder, second, first)]
    assert results == ["holder", "second", "first"]
    assert lab.journal.tags("start") == ["holder", "second", "first"]
