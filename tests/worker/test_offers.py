"""Free slots that are offered: to slow queues, to nobody, and across a store that lost its data."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import RedisServer
from tests.worker.lab import Lab, Worker, eventually
from tests.worker.message import consume, stop_consuming, wait_for_lines
from tests.worker.versions import needs_celery

ASIDE, DROPPED = "steps aside in the line", "dropped: another copy"
SHORT_OFFERS: dict[str, Any] = {
    "task_acks_late": True, "exclusive_offer": 0.005, "exclusive_reap_period": 0.05,
}  # fmt: skip


def hold(lab: Lab, *queues: str) -> Worker:
    """A worker of these queues and of `lab`, with one body open at the door "holder"."""
    worker = lab.start_worker("w1", 2, options=("-Q", ",".join(["lab", *queues])))
    lab.send("wait", "k", tag="holder", hold=True)
    lab.journal.wait_for("start", tag="holder")
    return worker


def line_up(lab: Lab, *tags: str, queue: str = "lab") -> list[str]:
    """Park these, one behind the other; their ids."""
    ids = []
    for tag in tags:
        before = lab.waiting("wait", "k")
        ids.append(lab.send("wait", "k", tag=tag, options={"queue": queue}).id)
        lab.wait_for_line(before + 1, "wait", "k")
    return ids


def wait_for_empty_queue(lab: Lab, queue: str) -> None:
    eventually(lambda: not lab.doors.llen(queue) and not lab.doors.hlen("unacked"), f"nothing in {queue}")


@pytest.mark.promise(
    "The library runs no task twice by its own doing",
    name="no second run of ours",
    broke="explorer: promoted copies are fresh, no tombstone; stress: no tombstones",
)
def test_a_task_promoted_several_times_since_its_queue_was_slow_runs_once(
    make_lab: Callable[..., Lab], acks: dict[str, bool]
) -> None:
    lab = make_lab(**{**SHORT_OFFERS, **acks})
    worker = hold(lab, "slow")
    line_up(lab, "a", queue="slow")
    stop_consuming(lab, worker, "slow")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("slow") >= 4, "four copies in the queue")
    late = lab.start_worker("w2", 2, options=("-Q", "slow"))
    wait_for_lines(DROPPED, 3, late)
    wait_for_empty_queue(lab, "slow")
    assert lab.journal.tags("start") == ["holder", "a"]


@pytest.mark.promise(
    "`control terminate` and `inspect query_task` find the task that runs, though copies of its message came "
    "to its worker and ended",
    broke="red before: tasks unknown, and the body ran on",
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_run_is_found_and_terminated_after_its_copies_have_ended(
    make_lab: Callable[..., Lab], acks: dict[str, bool], when: str
) -> None:
    lab = make_lab(**{**SHORT_OFFERS, **acks})
    worker = hold(lab, "slow")
    result = lab.send("wait", "k", tag="a", hold=True, options={"queue": "slow"})
    lab.wait_for_line(1, "wait", "k")
    stop_consuming(lab, worker, "slow")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("slow") >= 4, "four copies in the queue")
    slots = 2 if when == "before" else 1  # with one slot the copies wait in the worker for the end of the run
    late = lab.start_worker("w2", slots, options=("-Q", "slow"))
    lab.journal.wait_for("start", tag="a")
    if when == "before":
        wait_for_lines(DROPPED, 3, late)
    else:
        wait_for_lines(f"[{result.id}] received", 4, late)
    inspect = lab.app.control.inspect([late.name], timeout=30)
    assert list(inspect.query_task(result.id)[late.name]) == [result.id]
    lab.app.control.terminate(result.id, signal="SIGKILL")
    eventually(lambda: result.state == "REVOKED", "the end of the body")
    assert lab.journal.tags("start") == ["holder", "a"]
    eventually(lambda: not lab.task("wait").lock_state("k").holders, "a free key")


@pytest.mark.promise(
    "A copy of an offer that comes late does not revoke the run of another; a message that cannot be "
    "published does not keep the next one from being published",
    name="late copy, unpublishable message",
    broke="it announces; the first error ends all",
)
@needs_celery("5.7", "a revoke that leaves the state of a running task alone")
def test_a_copy_that_comes_late_does_not_revoke_the_run_of_another(make_lab: Callable[..., Lab]) -> None:
    calm = {"exclusive_ttl": 600, "worker_prefetch_multiplier": 1, "task_track_started": True}
    lab = make_lab(**SHORT_OFFERS, **calm)
    idle = hold(lab)
    busy = lab.start_worker("w2", 1, options=("-Q", "slow"))
    result = lab.send("wait", "k", tag="slow", hold=True, options={"queue": "slow"})
    lab.wait_for_line(1, "wait", "k")
    stop_consuming(lab, busy, "slow")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("slow") >= 3, "three copies in the queue")
    consume(lab, busy, "slow")
    lab.journal.wait_for("start", tag="slow")
    assert len(lab.app.control.revoke(result.id, reply=True, timeout=60, limit=2)) == 2
    consume(lab, idle, "slow")
    eventually(lambda: not lab.doors.llen("slow") and lab.doors.hlen("unacked") == 1, "the end of all copies")
    assert f"Discarding revoked task: {lab.task('wait').name}[{result.id}]" in idle.log
    assert result.state == "STARTED"
    lab.open("slow")
    assert result.get(timeout=60) == "slow"
    wait_for_empty_queue(lab, "slow")
    assert lab.journal.tags("start") == ["holder", "slow"]


@pytest.mark.promise("A queue slower than all offers moves, each task once")
def test_a_queue_slower_than_all_offers_still_moves_each_task_once(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(**SHORT_OFFERS)
    worker = hold(lab, "slow")
    tags = [f"{number:02}" for number in range(10)]
    ids = line_up(lab, *tags, queue="slow")
    stop_consuming(lab, worker, "slow")
    lab.open("holder")
    wait_for_lines(ASIDE, 2, worker)
    late = lab.start_worker("w2", 4, options=("-Q", "slow"))
    lab.journal.wait_for("end", 11)
    wait_for_empty_queue(lab, "slow")
    assert worker.stop() == late.stop() == 0  # they have said all
    ran = lab.journal.tags("start")[1:]
    assert sorted(ran) == tags
    assert lab.journal.most_open() == 1
    log = worker.log + late.log
    in_line = [tag for tag, id in zip(tags, ids, strict=True) if f"[{id}] {ASIDE}" not in log]
    assert [tag for tag in ran if tag in in_line] == in_line
    assert lab.waiting("wait", "k") == 0


@pytest.mark.promise(
    "A head of the line that no worker can accept steps aside, and runs when a worker accepts it",
    name="stepping aside",
    broke="explorer: every head steps aside",
)
def test_a_head_in_a_queue_without_consumer_steps_aside_with_a_warning_until_a_worker_consumes_it(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(**{**SHORT_OFFERS, "exclusive_offer": 0.02})  # the others are offered theirs only once
    worker = hold(lab, "desert")
    (lost,) = line_up(lab, "lost", queue="desert")
    line_up(lab, "next", "last")
    stop_consuming(lab, worker, "desert")
    lab.open("holder")
    for tag in ("next", "last"):  # each may make way for the other's queue in so short an offer
        lab.journal.wait_for("end", tag=tag)
    lab.send("wait", "k", tag="newcomer")
    lab.journal.wait_for("end", tag="newcomer")
    line = worker.wait_for_log(ASIDE)
    assert ": WARNING/" in line
    assert lost in line
    assert lab.task("wait").lock_state("k").key in line
    assert sorted(lab.journal.tags("start")) == ["holder", "last", "newcomer", "next"]
    lab.start_worker("w2", 1, options=("-Q", "desert"))
    lab.journal.wait_for("end", tag="lost")
    wait_for_empty_queue(lab, "desert")
    assert lab.journal.tags("start").count("lost") == 1


@pytest.mark.proves("stepping aside")
def test_a_task_aside_is_offered_again_when_its_messages_are_lost(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(**SHORT_OFFERS)
    worker = hold(lab, "desert")
    line_up(lab, "lost", queue="desert")
    line_up(lab, "next")
    stop_consuming(lab, worker, "desert")
    lab.open("holder")
    worker.wait_for_log(ASIDE)
    lab.doors.delete("desert")
    lab.start_worker("w2", 1, options=("-Q", "desert"))
    lab.journal.wait_for("end", tag="lost")


@pytest.mark.proves("stepping aside")
def test_a_head_that_the_worker_does_not_know_steps_aside_until_one_does(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(module="tests.worker.shop_shared", **SHORT_OFFERS)
    new = lab.start_worker("new", 2)
    old_lab = make_lab(module="tests.worker.shop_old", **SHORT_OFFERS)
    old = old_lab.start_worker("old", 2, options=("-Q", "holding"))
    lab.send("near", "k", tag="holder", hold=True, options={"queue": "holding"})
    lab.journal.wait_for("start", tag="holder")
    far = lab.send("far", "k", tag="far")
    lab.wait_for_line(1, "near", "k")
    lab.send("near", "k", tag="near")
    lab.wait_for_line(2, "near", "k")
    assert new.stop() == 0
    consume(lab, old, "lab")
    lab.open("holder")
    lab.journal.wait_for("end", tag="near")
    assert far.id in old.wait_for_log(ASIDE)
    assert old.stop() == 0
    lab.start_worker("newer", 2)
    lab.journal.wait_for("end", tag="far")
    assert lab.journal.tags("start") == ["holder", "near", "far"]


@pytest.mark.proves("no second run of ours")
@pytest.mark.parametrize("loss", ["flushed", "restarted"])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_promoted_task_runs_once_though_the_store_has_lost_its_data_meanwhile(
    make_lab: Callable[..., Lab], start_redis: Callable[..., RedisServer], loss: str, copies: int
) -> None:
    store = start_redis()
    lab = make_lab(exclusive_store=store.url, exclusive_offer=60 if copies == 1 else 0.05,
                   exclusive_reap_period=0.05, task_acks_late=True)  # fmt: skip
    worker = hold(lab)
    line_up(lab, "a")
    stop_consuming(lab, worker, "lab")
    lab.open("holder")
    eventually(lambda: lab.doors.llen("lab") >= copies, f"{copies} promoted messages in the queue")
    if loss == "flushed":
        with store.client() as client:
            client.flushall()
    else:
        store.restart(keep_data=False)
    (text, *_) = lab.doors.lrange("lab", 0, -1)
    assert json.loads(text)["headers"]["exclusive"]["promoted"]
    lab.start_worker("w2", 1)
    lab.journal.wait_for("end", tag="a")
    wait_for_empty_queue(lab, "lab")
    assert lab.journal.tags("start") == ["holder", "a"]
