"""Second deliveries and pauses, in the pools of one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.lab import Lab
from tests.worker.message import Message, wait_for_lines

pytestmark = [pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])]
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def slots(pool: str) -> int:
    return 1 if pool == "solo" else 2


@pytest.mark.promise(
    "In every pool a copy of a running task neither runs beside it nor after it, and a holder that was "
    "paused past its lease gets `LeaseLost`",
    name="pools, copies and pauses",
    broke="one token for all deliveries; no tombstones",
)
def test_a_copy_of_a_running_task_neither_runs_beside_it_nor_after_it(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(**LATE)
    message = Message.withheld(lab, "wait", "k", tag="a", hold=True)
    workers = [lab.start_worker(name, slots(pool), pool=pool) for name in ("w1", "w2")]
    message.deliver()
    lab.journal.wait_for("start", tag="a")
    message.deliver_again()
    wait_for_lines("parked: ", 1, *workers)
    lab.send("wait", "k", tag="after")
    lab.wait_for_line(1, "wait", "k")
    lab.open("a")
    lab.journal.wait_for("end", tag="after")
    message.deliver_again()
    wait_for_lines("dropped: another copy", 1, *workers)
    assert lab.journal.tags("start") == ["a", "after"]
    assert lab.journal.most_open() == 1


@pytest.mark.proves("pools, copies and pauses")
def test_a_holder_paused_past_its_lease_gets_lease_lost_and_takes_nothing_from_the_next(
    make_lab: Callable[..., Lab], pool: str
) -> None:
    lab = make_lab(module="tests.worker.shop_fenced", exclusive_ttl=9, **LATE)
    paused = lab.start_worker("w1", slots(pool), pool=pool)
    lab.send("save", "k", tag="first", hold=True, check=True)
    lab.journal.wait_for("start", tag="first")
    lab.start_worker("w2", slots(pool), pool=pool)
    second = lab.send("save", "k", tag="second", hold=True)
    lab.wait_for_line(1, "save", "k")
    paused.pause()
    lab.journal.wait_for("start", tag="second")
    paused.resume()
    lab.open("first")
    lab.journal.wait_for("lost", tag="first")
    paused.wait_for_log("lost its lease")
    assert [holder.task_id for holder in lab.task("save").lock_state("k").holders] == [second.id]
    lab.open("second")
    lab.journal.wait_for("end", tag="second")
    assert lab.journal.tags("written") == ["second"]
