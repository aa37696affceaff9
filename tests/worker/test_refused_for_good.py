"""What a store refuses for good ends its task with an error that says so: it does not wait."""

from __future__ import annotations

from collections.abc import Callable
from random import randbytes

import pytest

from celery_exclusive.errors import StoreRefused
from tests.worker.lab import Lab

pytestmark = pytest.mark.promise(
    "A refusal for good is no outage: a task whose id no index can hold, or whose lock is damaged, fails "
    "at once with an error that says so, holds up no other task, and its caller is told; messages that "
    "have to be sent are sent",
    name="refused for good",
    broke="red before: it held a slot for 60 s, again and again; StoreUnavailable",
)

DEADLINE = 50
"""Seconds: fewer than a task waits for its store."""


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("store", ["postgres", "maria"])
def test_a_task_whose_id_the_store_cannot_keep_fails_at_once_and_holds_up_no_other(
    store: str, late: bool, request: pytest.FixtureRequest, make_lab: Callable[..., Lab]
) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    lab = make_lab(exclusive_store=url, task_acks_late=late)
    lab.start_worker("w1", 2)
    holder = lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    waiting = lab.send("wait", "k", tag="next")
    doomed = lab.send("wait", "k", tag="doomed", options={"task_id": randbytes(5_000).hex()})
    with pytest.raises(StoreRefused, match="shorten the task's id"):
        doomed.get(timeout=DEADLINE)
    assert lab.send("wait", "another", tag="another").get(timeout=DEADLINE) == "another"
    lab.open("holder")
    assert [result.get(timeout=DEADLINE) for result in (holder, waiting)] == ["holder", "next"]
    assert "doomed" not in lab.journal.tags("start")
