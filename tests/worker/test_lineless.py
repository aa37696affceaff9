"""Workers with a store that keeps no lines: skip, raise, reschedule and unique, and what waits is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_exclusive import LockHeld, OptionError
from tests.memcached import MemcachedServer
from tests.worker.lab import Lab, eventually
from tests.worker.message import Message

DEADLINE = 90
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
MakeLab = Callable[..., Lab]


@pytest.fixture
def lab(make_lab: MakeLab, memcached_url: str) -> Lab:
    return make_lab(
        module="tests.worker.shop_lineless", exclusive_store=memcached_url, exclusive_ttl=3, **LATE
    )


def hold(lab: Lab, name: str, tag: str = "holder") -> Any:
    result = lab.send(name, "k", tag=tag, hold=True)
    lab.journal.wait_for("start", tag=tag)
    return result


@pytest.mark.promise(
    "Workers on a store without lines skip, raise, reschedule and keep calls unique; a killed worker's "
    "task runs again once; a task that has to wait is refused where it is declared",
    name="store without lines",
    broke=(
        "a redelivered unique task was skipped as a duplicate of its own dead run; not checked when "
        "declared; not checked at the start"
    ),
)
def test_tasks_skip_fail_or_come_later_while_another_holds_their_lock(lab: Lab) -> None:
    lab.start_worker("w1", 3)
    for name in ("skip", "strict", "later"):
        holder = hold(lab, name, tag=name)
        second = lab.send(name, "k", tag=f"second {name}")
        if name == "skip":
            assert second.get(timeout=DEADLINE)["skipped"]["existing_id"] == holder.id
        elif name == "strict":
            with pytest.raises(LockHeld):
                second.get(timeout=DEADLINE)
        lab.assert_kept(name, "k")
        lab.open(name)
        assert holder.get(timeout=DEADLINE) == name
        if name == "later":
            assert second.get(timeout=DEADLINE) == "second later"
    assert lab.journal.tags("start") == ["skip", "strict", "later", "second later"]


@pytest.mark.proves("store without lines")
def test_a_unique_task_is_not_queued_twice(lab: Lab) -> None:
    first = lab.send("once", "k", "first", True)
    assert lab.send("once", "k", "duplicate").existing_id == first.id
    lab.start_worker("w1", 2)
    lab.journal.wait_for("start", tag="first")
    assert lab.send("once", "k", "duplicate").existing_id == first.id
    lab.open("first")
    assert first.get(timeout=DEADLINE) == "first"
    assert lab.send("once", "k", "next").get(timeout=DEADLINE) == "next"
    assert lab.journal.tags("start") == ["first", "next"]


@pytest.mark.proves("store without lines")
@pytest.mark.parametrize("name", ["skip", "later", "once"])
def test_a_task_whose_worker_is_killed_runs_again_and_a_late_copy_of_it_does_not(lab: Lab, name: str) -> None:
    doomed = lab.start_worker("w1", 1)
    holder = hold(lab, name)
    message = Message.unacknowledged(lab, holder.id)
    doomed.kill()
    worker = lab.start_worker("w2", 2)
    message.deliver_again()
    lab.journal.wait_for("start", 2, tag="holder")
    Message.unacknowledged(lab, holder.id).deliver_again()
    lab.open("holder")
    worker.wait_for_log(f"[{holder.id}] dropped: ")
    assert lab.journal.tags("start") == ["holder", "holder"]


@pytest.mark.proves("memcached, loss of data")
def test_a_server_that_is_restarted_gets_the_leases_of_running_bodies_back(
    make_lab: MakeLab, start_memcached: Callable[..., MemcachedServer]
) -> None:
    server = start_memcached()
    lab = make_lab(module="tests.worker.shop_lineless", exclusive_store=server.url, exclusive_ttl=3, **LATE)
    worker = lab.start_worker("w1", 2)
    holder = hold(lab, "skip")
    server.kill()
    server.start()
    worker.wait_for_log("has lost its data")
    eventually(lambda: lab.task("skip").lock_state("k").is_running, "the lease that is restored")
    assert "skipped" in lab.send("skip", "k", tag="second").get(timeout=DEADLINE)
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"


REFUSED = "keeps no line, and task tests.worker.shop.wait with Exclusive('key') has to wait in one: give it"


@pytest.mark.proves("store without lines")
def test_a_task_that_has_to_wait_in_a_line_is_refused_where_it_is_declared(
    make_lab: MakeLab, memcached_url: str
) -> None:
    lab = make_lab(module="tests.worker.shop", exclusive_store=memcached_url)
    with pytest.raises(OptionError, match=re.escape(REFUSED)):
        lab.app.finalize()
    worker = lab.start_worker("w1", 1, ready=False)
    assert worker.process.wait(60) != 0
    assert REFUSED in worker.log
    assert "postgresql://" in worker.log
