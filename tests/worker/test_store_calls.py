"""Single calls of the store whose request or reply goes astray: what was done is done once."""

from __future__ import annotations

import random
import time

import pytest

from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.stage import Stage, on_stages
from tests.worker.trouble import (
    ACQUIRE,
    RELEASE,
    TROUBLES,
    assert_all_is_well,
    hold,
    make_lab,
    repeated,
)

DEADLINE = 90


@pytest.mark.promise(
    "A call whose reply is lost is done once; a network that fails again and again loses nothing and lets "
    "no two in at once",
    name="lost replies",
    broke=(
        "a release is tried once; its second answer is an alarm; another token when repeated; a task that "
        "meets no store goes on without a lease"
    ),
)
@on_stages("prefork", brokers=("redis",))
def test_a_call_whose_reply_is_lost_is_done_once(stage: Stage, proxy: Proxy, store: RedisServer) -> None:
    """Lost once, it is repeated by the connection; lost twice, by the worker."""
    lab = make_lab(stage, proxy, exclusive_ttl=600, exclusive_offer=1)
    worker = stage.start_worker(lab)
    for times in (1, 2):
        proxy.lose(ACQUIRE, times)
        holder = lab.send("wait", "k", tag=f"holder {times}", hold=True)
        lab.journal.wait_for("start", tag=f"holder {times}")
        proxy.lose(ACQUIRE, times)
        parked = lab.send("wait", "k", tag=f"parked {times}")
        worker.wait_for_log(f"[{parked.id}] parked: number 1 in line")
        proxy.lose(RELEASE, times)
        proxy.lose(ACQUIRE, times)
        lab.open(f"holder {times}")
        assert holder.get(timeout=DEADLINE) == f"holder {times}"
        assert parked.get(timeout=DEADLINE) == f"parked {times}"
        skipped = lab.send("skip", "s", tag=f"skip {times}")
        assert skipped.get(timeout=DEADLINE) == f"skip {times}"
    assert proxy.met == [ACQUIRE, ACQUIRE, RELEASE, ACQUIRE] + 2 * [ACQUIRE] * 2 + 2 * [RELEASE] + 2 * [
        ACQUIRE
    ]
    assert "lost its lease" not in worker.log
    assert "could not release lock" not in worker.log
    assert_all_is_well(stage, lab, store)


@pytest.mark.promise(
    "A request that arrives after its task has ended, by its own repetition, is stale",
    name="stale request",
    broke=(
        "repeated as the first; the token of the finished run not kept, not compared, not in the quick way "
        "(kit)"
    ),
)
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_request_that_arrives_after_its_task_has_ended_makes_no_task_run_twice(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy)
    stage.start_worker(lab)
    proxy.withhold(ACQUIRE)
    first = lab.send("wait", "k", tag="first")
    assert first.get(timeout=DEADLINE) == "first"  # by its second request
    holder = hold(lab, "wait")
    proxy.deliver()
    eventually(lambda: not proxy.is_on_its_way, "the first request's arrival")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    assert lab.send("wait", "k", tag="last").get(timeout=DEADLINE) == "last"
    assert_all_is_well(stage, lab, store)


@pytest.mark.proves("lost replies")
@on_stages("prefork", "gevent", brokers=("redis",), lates=(True,))
def test_a_network_that_fails_again_and_again_loses_nothing_and_lets_no_two_in_at_once(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    lab = make_lab(stage, proxy, exclusive_ttl=600, exclusive_offer=0.5)
    for name in ("w1", "w2"):
        stage.start_worker(lab, name)
    results = {f"{key}{n}": lab.send("wait", key, tag=f"{key}{n}") for n in range(15) for key in "kl"}
    chance, until = random.Random(1), time.monotonic() + DEADLINE
    while not all(result.ready() for result in results.values()):
        assert time.monotonic() < until
        chance.choice(list(TROUBLES.values()))(proxy)
        time.sleep(chance.uniform(0, 0.2))
        proxy.restore()
        time.sleep(chance.uniform(0, 0.5))
    assert {tag: result.get() for tag, result in results.items()} == {tag: tag for tag in results}
    with store.client() as client:
        stage.assert_nothing_is_left(lab, client)
    assert lab.journal.most_open(key="k") == lab.journal.most_open(key="l") == 1
    assert repeated(lab) == []


@pytest.mark.proves("unreachable at a release")
@on_stages("prefork", brokers=("redis",), lates=(True,))
def test_a_task_that_could_not_release_its_lease_does_not_run_again(
    stage: Stage, proxy: Proxy, store: RedisServer
) -> None:
    """A message that came again, or may have, stays in line behind its own run."""
    lab = make_lab(stage, proxy, exclusive_ttl=9)
    worker = stage.start_worker(lab)
    holder = hold(lab, "wait")
    proxy.lose(ACQUIRE, 2)
    second = lab.send("wait", "k", tag="second", hold=True)
    worker.wait_for_log(f"[{second.id}] parked: number 1 in line")
    lab.open("holder")
    assert holder.get(timeout=DEADLINE) == "holder"
    lab.journal.wait_for("start", tag="second")
    proxy.cut()
    lab.open("second", "second")
    assert second.get(timeout=DEADLINE) == "second"
    worker.wait_for_log(f"task {second.id} could not release lock")
    proxy.restore()
    assert lab.send("wait", "k", tag="last").get(timeout=DEADLINE) == "last"
    assert_all_is_well(stage, lab, store)
